package suite

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/simple"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// waivedText is at the end of a run that accepted outcomes only because the backend lacks a feature.
const waivedText = `WAIVED, what is wrong but for what the backend lacks:\n( +[\w ]+: \d+ times\n)* +Refusal: \d+ times`

func TestWaivedDeviationsAreListed(t *testing.T) {
	need.Program(t, "nft")
	simple.NeedNetwork(t)
	t.Parallel()
	out, err := simple.Child(t.Context(), "TestChildRandomlyLacksFeatures").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Regexp(t, waivedText, string(out))
}

func TestChildRandomlyLacksFeatures(t *testing.T) {
	simple.ChildOnly(t)
	Random(t, backend.Factory{New: simple.Factory(simple.Limited).New, Lacks: []backend.Feature{
		backend.IPv6, backend.SCTP, backend.SessionAffinity, backend.SourceRanges, backend.Refusal,
		backend.NodePortAddresses},
		Waives: []string{backend.ExternalPortsCase, backend.BridgeCase, backend.InterfaceCase}}, 3, 20)
}

// blackholes is a backend that drops traffic to unallocated addresses by routes of type blackhole.
type blackholes struct{ *simple.Backend }

func (b *blackholes) SetNode(n *model.Node) {
	for _, cidr := range n.ServiceCIDRs {
		b.add(&netlink.Route{Type: unix.RTN_BLACKHOLE}, cidr)
	}
	b.Backend.SetNode(n)
}

func (b *blackholes) SetService(svc *model.Service) {
	bridge, err := netlink.LinkByName(network.BridgeName)
	if err != nil {
		panic(err)
	}
	for _, ip := range svc.ClusterIPs {
		b.add(&netlink.Route{LinkIndex: bridge.Attrs().Index}, netip.PrefixFrom(ip, ip.BitLen()))
	}
	b.Backend.SetService(svc)
}

func (b *blackholes) add(r *netlink.Route, to netip.Prefix) {
	r.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if err := netlink.RouteAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		panic(err)
	}
}

// A blackhole route is one way to drop. The node's own processes cannot even start a flow there, which is not a fault.
func TestABackendMayDropWithBlackholeRoutes(t *testing.T) {
	need.Program(t, "nft")
	f := simple.Factory("")
	simplest := f.New
	f.New = func(ctx context.Context, env backend.Env) (sink.Sink, error) {
		b, err := simplest(ctx, env)
		return &blackholes{b.(*simple.Backend)}, err
	}
	b := testbedOf(t, f, 1)
	for _, name := range []string{
		"UDP flows that began before the service are served",
		"addresses of the service CIDRs that no service has are dropped",
	} {
		require.NoError(t, runCase(t.Context(), b, simple.CaseNamed(t, name)), name)
	}
}

// IDs differ between tests, and Stop is called when no sink is alive.
func TestTheEnvironmentHasALife(t *testing.T) {
	simple.NeedNetwork(t)
	ids := map[string]int{}
	var events []string
	for range 2 {
		t.Run("testbed", func(t *testing.T) {
			open := 0
			b := testbedOf(t, backend.Factory{
				New: func(_ context.Context, env backend.Env) (sink.Sink, error) {
					ids[env.ID]++
					open++
					return &closer{open: &open}, nil
				},
				Stop: func(_ context.Context, env backend.Env) error {
					assert.Zero(t, open, "no sink is alive when the backend is stopped")
					ids[env.ID]++
					events = append(events, "stop")
					return nil
				},
				Cleanup: func(context.Context, backend.Env) error {
					events = append(events, "clean up")
					return nil
				},
			}, 1)
			require.NoError(t, b.Start(t.Context(), cluster.Setup{}))
			require.NoError(t, b.Restart(t.Context()))
		})
	}
	assert.Equal(t, []string{"stop", "clean up", "stop", "clean up"}, events)
	require.Len(t, ids, 2)
	for id, calls := range ids {
		assert.NotEmpty(t, id)
		assert.Equal(t, 3, calls)
	}
}
