package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func options(env conformance.Env) ipvs.Options {
	return ipvs.Options{OtherNodes: nodes(env.OtherNodeIPs), Common: frontend.Common{
		Families: env.Families, NodePortAddresses: env.NodePorts}}.Draining(500 * time.Millisecond)
}

// nodes are other nodes that stay as they are.
type nodes []netip.Addr

func (n nodes) Addresses() ([]netip.Addr, bool) { return n, true }
func (n nodes) Changed() <-chan struct{}        { return nil }

// midway is a kernel that, on request, fails all changes of endpoints but the first one.
type midway struct {
	*dataplane.Kernel
	failing *atomic.Int32 // 0: not; otherwise counts the changes
}

func (m midway) AddDestination(ctx context.Context, key dataplane.ServerKey, d dataplane.Destination) error {
	if m.failing.Load() != 0 && m.failing.Add(1) > 2 {
		return errors.New("made to fail")
	}
	return m.Kernel.AddDestination(ctx, key, d)
}

func factory() conformance.Factory {
	var failing atomic.Int32
	return conformance.Factory{
		New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
			kernel, err := dataplane.NewKernel(ctx, "")
			if err != nil {
				return nil, err
			}
			o := options(env)
			o.Dataplane = midway{kernel, &failing}
			b, err := ipvs.New(ctx, o)
			if err != nil {
				return nil, errors.Join(err, kernel.Close())
			}
			return backendtest.CleanFlows(ctx, env.NetNS.Fd(), env.Families, b, b, kernel), nil
		},
		Fail: func(context.Context, conformance.Env) (func() error, error) {
			failing.Store(1)
			return func() error { failing.Store(0); return nil }, nil
		},
		Cleanup: func(ctx context.Context, env conformance.Env) error { return ipvs.CleanUp(ctx, options(env)) },
		Dump:    dump,
		Break: func(ctx context.Context, _ conformance.Env) error {
			kernel, err := dataplane.NewKernel(ctx, "")
			if err != nil {
				return err
			}
			defer kernel.Close()
			servers, err := kernel.Servers(ctx)
			if err != nil {
				return err
			}
			for _, s := range servers {
				err = errors.Join(err, kernel.DeleteServer(ctx, s.ServerKey))
			}
			return err
		},
		RepairsItself: true,
		// What IPVS does not have: a client stays with an endpoint per virtual server, that is, per address and port;
		// and for as long as one of its connections is remembered, which for UDP is 5 minutes. And all of a service's
		// addresses are the node's own, so that nothing is forwarded to them; its processes take the way there for as
		// wide as the loopback interface, and IPVS does not cut what is too long.
		Lacks: []conformance.Feature{conformance.LoopbackNodePorts},
		Waives: []string{
			"a client stays with its endpoint, at all addresses of the port",
			"session affinity expires",
			"clients that do not return are free soon after the affinity timeout is lowered",
			"other ports of external addresses are left alone",
			"datagrams of the node itself get through beyond the MTU, in fragments",
		},
	}
}

func dump(ctx context.Context, _ conformance.Env) (string, error) {
	kernel, err := dataplane.NewKernel(ctx, "")
	if err != nil {
		return "", err
	}
	defer kernel.Close()
	servers, err := kernel.Servers(ctx)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, s := range servers {
		destinations, err := kernel.Destinations(ctx, s.ServerKey)
		if err != nil {
			return "", err
		}
		b.WriteString(dataplane.Text(s, destinations))
	}
	for _, f := range model.Families() {
		if rules, err := netlink.RuleList(map[model.Family]int{model.IPv4: netlink.FAMILY_V4,
			model.IPv6: netlink.FAMILY_V6}[f]); err == nil {
			for _, r := range rules {
				fmt.Fprintln(&b, r)
			}
		}
	}
	ruleset, err := backendtest.Ruleset(ctx)
	return b.String() + ruleset, err
}

func needIPVS(t *testing.T) {
	t.Helper()
	need.Root(t)
	_, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		// testing/vm has kernels for this; CI's own has none.
		if kernel := os.Getenv("KPL_VM_KERNEL"); kernel != "" {
			t.Fatalf("the kernel %s of testing/vm has no IPVS: %v", kernel, err)
		}
		t.Skipf("needs a kernel with IPVS, see testing/vm (%v)", err)
	}
}

func TestConformance(t *testing.T) {
	needIPVS(t)
	conformance.Test(t, factory())
}

// TestRandomClusters compares with the oracle on random clusters and changes. KPL_SEED and KPL_RUNS make it another or
// a longer one.
func TestRandomClusters(t *testing.T) {
	needIPVS(t)
	conformance.Random(t, factory(), uint64(backendtest.Number(t, "KPL_SEED", 1)),
		backendtest.Number(t, "KPL_RUNS", 40))
}
