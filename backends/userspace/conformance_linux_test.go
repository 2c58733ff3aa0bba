package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// parent plays the parent process: it holds the listening sockets while no backend runs, and the backends that are
// still draining.
type parent struct {
	mu       sync.Mutex
	sockets  []*os.File
	draining []*running
	failing  atomic.Bool
}

// running is a backend whose Close does what a process does that hands over its sockets and ends.
type running struct {
	*userspace.Backend
	addresses *localRoutes
	parent    *parent
}

// Sync fails midway if the parent's failing is set: it takes over the changes, but does not apply them.
func (r *running) Sync(ctx context.Context) error {
	if r.parent.failing.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	return r.Backend.Sync(ctx)
}

func (r *running) Close() error {
	r.parent.mu.Lock()
	defer r.parent.mu.Unlock()
	var err error
	if r.parent.sockets, err = r.Sockets(); err != nil {
		return err
	}
	stopped, stop := context.WithCancel(context.Background())
	stop() // connections are not waited for
	_ = r.Drain(stopped)
	r.parent.draining = append(r.parent.draining, r)
	return nil
}

func (p *parent) start(ctx context.Context, env conformance.Env) (sink.Sink, error) {
	routes, err := newLocalRoutes()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sockets := p.sockets
	p.sockets = nil
	b, err := userspace.New(ctx, userspace.Options{
		Addresses: routes,
		Common: frontend.Common{Families: env.Families, NodePortAddresses: env.NodePorts,
			Host: &hostaddr.System{NetNS: int(env.NetNS.Fd())}},
		LocalhostNodePorts: env.LocalhostNodePorts,
		Sockets:            sockets,
		Open:               env.Do,
	})
	if err != nil {
		return nil, err
	}
	return &running{b, routes, p}, nil
}

func (p *parent) stop(context.Context, conformance.Env) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, file := range p.sockets {
		errs = append(errs, file.Close())
	}
	for _, r := range p.draining {
		errs = append(errs, r.Backend.Close())
		r.addresses.handle.Close()
	}
	p.sockets, p.draining = nil, nil
	return errors.Join(errs...)
}

func factory() conformance.Factory {
	p := &parent{}
	return conformance.Factory{
		New:  p.start,
		Stop: p.stop,
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			l, err := newLocalRoutes()
			if err != nil {
				return err
			}
			defer l.handle.Close()
			for _, f := range env.Families {
				err = errors.Join(err, l.Update(ctx, f, true, nil, nil))
			}
			return err
		},
		Dump: func(context.Context, conformance.Env) (string, error) {
			routes, err := listRoutes()
			var list []string
			for _, r := range routes {
				list = append(list, fmt.Sprintf("local %v", r.Dst))
			}
			slices.Sort(list)
			return strings.Join(list, "\n"), err
		},
		Break: func(context.Context, conformance.Env) error {
			routes, err := listRoutes()
			for _, r := range routes {
				err = errors.Join(err, netlink.RouteDel(&r))
			}
			return err
		},
		Fail: func(context.Context, conformance.Env) (func() error, error) {
			p.failing.Store(true)
			return func() error { p.failing.Store(false); return nil }, nil
		},
		Lacks: []conformance.Feature{conformance.SCTP, conformance.SourcePreservation},
		Waives: []string{
			// It listens at the addresses, which others translate before it.
			"a pod's host port takes nothing that is for a service", "a pod's host port does not take a node port",
			"another program's table of nftables takes nothing that is for a service, whoever was first",
			"another program's rules of iptables take nothing that is for a service, whoever was first",
			"what an older kube-proxy left takes nothing, and rules of others that use it stay",
			// Loopback does this, beside a backend in the kernel.
			"a proxy serves node ports on 127.0.0.1 and ::1",
			"a proxy of node ports on loopback addresses keeps to the node with traffic policy Local",
			// A socket does not tell through which interface a connection came.
			"local pods are known by the bridge that they are behind",
			"local pods are known by the names of their interfaces",
			// The addresses of services are the node's own.
			"addresses of the service CIDRs that no service has are dropped",
			"processes of the node that listen on all addresses get nothing that is for a service",
			"at another node's address only the ports of a service are taken",
			// ICMP errors reach the sockets of the proxy, and not the client.
			"the error of a narrow way behind a service reaches the sender",
			"an endpoint's own refusal reaches the sender",
			"other ports of external addresses are left alone",
			// They wait in the listener's queue.
			"no new connection is lost while the backend restarts",
		},
	}
}

// listRoutes lists the backend's routes in the network namespace of the calling thread.
func listRoutes() ([]netlink.Route, error) {
	l, err := newLocalRoutes()
	if err != nil {
		return nil, err
	}
	defer l.handle.Close()
	return l.list()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Test(t, factory())
}

// TestRandomClusters compares the backend with the oracle on random clusters and changes. KPL_SEED and KPL_RUNS select
// another seed and number of runs.
func TestRandomClusters(t *testing.T) {
	t.Parallel()
	conformance.Random(t, factory(), uint64(backendtest.Number(t, "KPL_SEED", 1)), backendtest.Number(t, "KPL_RUNS", 40))
}
