package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// parent plays the parent process: it holds the listening sockets while no backend runs, and the backends that are
// still draining.
type parent struct {
	mu       sync.Mutex
	sockets  []*os.File
	draining []*running
	failing  atomic.Bool

	keepSource bool
}

// running is a backend whose Close does what a process does that hands over its sockets and ends.
type running struct {
	*userspace.Backend
	addresses *userspace.AnyIP
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
	if p.keepSource {
		if err := wayBack("up"); err != nil {
			return nil, err
		}
	}
	anyIP, err := userspace.NewAnyIP()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sockets := p.sockets
	p.sockets = nil
	b, err := userspace.New(ctx, userspace.Options{
		Addresses: anyIP,
		Common: frontend.Common{Families: env.Families, NodePortAddresses: env.NodePorts,
			Host: &nodeaddr.System{NetNS: int(env.NetNS.Fd())}},
		LocalhostNodePorts: env.LocalhostNodePorts,
		Sockets:            sockets,
		KeepSource:         p.keepSource,
		Open:               env.Do,
	}.With(userspace.Tuning{MaxListeners: 10000})) // enough for one namespace in BenchmarkScale
	if err != nil {
		return nil, err
	}
	return &running{b, anyIP, p}, nil
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
		r.addresses.Close()
	}
	p.sockets, p.draining = nil, nil
	return errors.Join(errs...)
}

// wayBack runs the script that routes endpoints' answers to the backend's transparent sockets.
func wayBack(upOrDown string) error {
	out, err := exec.Command("../../examples/userspace/keep-source", upOrDown).CombinedOutput()
	if err != nil {
		return fmt.Errorf("keep-source %s: %w: %s", upOrDown, err, out)
	}
	return nil
}

func factory(keepSource bool) conformance.Factory {
	p := &parent{keepSource: keepSource}
	f := conformance.Factory{
		New:  p.start,
		Stop: p.stop,
		Cleanup: func(ctx context.Context, env conformance.Env) error {
			a, err := userspace.NewAnyIP()
			if err != nil {
				return err
			}
			defer a.Close()
			for _, f := range env.Families {
				err = errors.Join(err, a.Update(ctx, f, true, nil, nil))
			}
			if keepSource {
				err = errors.Join(err, wayBack("down"))
			}
			return err
		},
		Dump: func(context.Context, conformance.Env) (string, error) {
			routes, err := localRoutes()
			var list []string
			for _, r := range routes {
				list = append(list, fmt.Sprintf("local %v", r.Dst))
			}
			slices.Sort(list)
			return strings.Join(list, "\n"), err
		},
		Break: func(context.Context, conformance.Env) error {
			routes, err := localRoutes()
			for _, r := range routes {
				err = errors.Join(err, netlink.RouteDel(&r))
			}
			return err
		},
		Fail: func(context.Context, conformance.Env) (func() error, error) {
			p.failing.Store(true)
			return func() error { p.failing.Store(false); return nil }, nil
		},
		Lacks: []conformance.Feature{conformance.SCTP},
		Waives: []string{
			// Loopback does this, beside a backend in the kernel.
			"a proxy serves node ports on 127.0.0.1 and ::1",
			"a proxy of node ports on loopback addresses keeps to the node with traffic policy Local",
			// A socket does not tell through which interface a connection came.
			"local pods are known by the bridge that they are behind",
			"local pods are known by the names of their interfaces",
			// The addresses of services are the node's own.
			"addresses of the service CIDRs that no service has are dropped",
			"processes of the node that listen on all addresses get nothing that is for a service",
			// ICMP errors reach the sockets of the proxy, and not the client.
			"the error of a narrow way behind a service reaches the sender",
			"an endpoint's own refusal reaches the sender",
			"other ports of external addresses are left alone",
			// They wait in the listener's queue.
			"no new connection is lost while the backend restarts",
		},
	}
	if !keepSource {
		f.Lacks = append(f.Lacks, conformance.SourcePreservation)
	}
	return f
}

// localRoutes lists the backend's routes.
func localRoutes() ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: 75},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
}

func TestConformance(t *testing.T) { conformance.Test(t, factory(false)) }

// Endpoints see the client's address wherever the rules say so.
func TestConformanceKeepingTheSource(t *testing.T) {
	needWayBack(t)
	conformance.Test(t, factory(true))
}

func needWayBack(t testing.TB) {
	need.Program(t, "nft")
	need.Program(t, "ip")
	var err error
	testns.New(t).Do(func() error {
		err = errors.Join(configure("lo", ""), wayBack("up"))
		return nil
	})
	need.That(t, err == nil, fmt.Sprintf("policy routing, and nftables that knows transparent sockets (%v)", err))
}

// TestRandomClusters compares the backend with the oracle on random clusters and changes. KPL_SEED and KPL_RUNS select
// another seed and number of runs.
func TestRandomClusters(t *testing.T) { random(t, false, 40) }

func TestRandomClustersKeepingTheSource(t *testing.T) {
	needWayBack(t)
	random(t, true, 10)
}

func random(t *testing.T, keepSource bool, runs int) {
	conformance.Random(t, factory(keepSource), uint64(backendtest.Number(t, "KPL_SEED", 1)),
		backendtest.Number(t, "KPL_RUNS", runs))
}

// BenchmarkScale uses only one family, because a restart takes two file descriptors for each frontend.
func BenchmarkScale(b *testing.B) {
	f := factory(false)
	f.Lacks = append(f.Lacks, conformance.IPv6)
	conformance.Scale(b, f)
}
