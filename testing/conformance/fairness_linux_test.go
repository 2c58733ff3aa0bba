package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// waivedText is at the end of a run that accepted outcomes only because the backend lacks a feature.
const waivedText = `WAIVED, what is wrong but for what the backend lacks:\n( +[\w ]+: \d+ times\n)* +Refusal: \d+ times`

func TestWaivedDeviationsAreListed(t *testing.T) {
	need.Program(t, "nft")
	needNetwork(t)
	t.Parallel()
	out, err := child(t.Context(), "TestChildRandomlyLacksFeatures").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Regexp(t, waivedText, string(out))
}

func TestChildRandomlyLacksFeatures(t *testing.T) {
	childOnly(t)
	Random(t, Factory{New: simpleFactory(limited).New, Lacks: []Feature{
		IPv6, SCTP, SessionAffinity, SourceRanges, Refusal, NodePortAddresses},
		Waives: []string{externalPortsCase, bridgeCase, interfaceCase}}, 3, 20)
}

// These outcomes are acceptable instead of a refusal.
func TestRefusalsOfAllKinds(t *testing.T) {
	o, err := oracle.New(oracle.State{Node: &model.Node{Name: theNode}}, oracle.Config{})
	require.NoError(t, err)
	e := expectation{out: oracle.Outcome{Verdict: oracle.Reject}, oracle: o, waived: &waivers{}}
	e.Protocol = model.TCP
	saw := func(v oracle.Verdict) network.Seen { return network.Seen{Observation: oracle.Observation{Verdict: v}} }
	late := saw(oracle.Reject)
	late.Accepted = true
	for _, tc := range []struct {
		name  string
		seen  network.Seen
		right map[Feature]bool // for a backend that lacks it; "": for every backend
	}{
		{"a refusal", saw(oracle.Reject), map[Feature]bool{"": true, Refusal: true, SourcePreservation: true}},
		{"a reset of an accepted connection", late, map[Feature]bool{Refusal: true}},
		{"silence", saw(oracle.Drop), map[Feature]bool{Refusal: true}},
		{"an answer", saw(oracle.Deliver), nil},
		{"something else", saw(0), nil},
	} {
		for _, lacks := range []Feature{"", Refusal, SourcePreservation} {
			e.factory = &Factory{Lacks: []Feature{lacks}}
			if err := e.check(tc.seen); tc.right[lacks] {
				assert.NoError(t, err, "%s, without %v", tc.name, lacks)
			} else {
				assert.Error(t, err, "%s, without %v", tc.name, lacks)
			}
		}
	}
}

// blackholes is a backend that drops traffic to unallocated addresses by routes of type blackhole.
type blackholes struct{ *simple }

func (b *blackholes) SetNode(n *model.Node) {
	for _, cidr := range n.ServiceCIDRs {
		b.add(&netlink.Route{Type: unix.RTN_BLACKHOLE}, cidr)
	}
	b.simple.SetNode(n)
}

func (b *blackholes) SetService(svc *model.Service) {
	bridge, err := netlink.LinkByName(network.BridgeName)
	if err != nil {
		panic(err)
	}
	for _, ip := range svc.ClusterIPs {
		b.add(&netlink.Route{LinkIndex: bridge.Attrs().Index}, netip.PrefixFrom(ip, ip.BitLen()))
	}
	b.simple.SetService(svc)
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
	f := simpleFactory("")
	simplest := f.New
	f.New = func(ctx context.Context, env Env) (sink.Sink, error) {
		b, err := simplest(ctx, env)
		return &blackholes{b.(*simple)}, err
	}
	b := testbedOf(t, f, 1)
	for _, name := range []string{
		"UDP flows that began before the service are served",
		"addresses of the service CIDRs that no service has are dropped",
	} {
		require.NoError(t, b.runCase(t.Context(), caseNamed(t, name)), name)
	}
}

// IDs differ between tests, and Stop is called when no sink is alive.
func TestTheEnvironmentHasALife(t *testing.T) {
	needNetwork(t)
	ids := map[string]int{}
	var events []string
	for range 2 {
		t.Run("testbed", func(t *testing.T) {
			open := 0
			b := testbedOf(t, Factory{
				New: func(_ context.Context, env Env) (sink.Sink, error) {
					ids[env.ID]++
					open++
					return &closer{open: &open}, nil
				},
				Stop: func(_ context.Context, env Env) error {
					assert.Zero(t, open, "no sink is alive when the backend is stopped")
					ids[env.ID]++
					events = append(events, "stop")
					return nil
				},
				Cleanup: func(context.Context, Env) error {
					events = append(events, "clean up")
					return nil
				},
			}, 1)
			require.NoError(t, b.start(t.Context(), setup{}))
			require.NoError(t, b.restart(t.Context()))
		})
	}
	assert.Equal(t, []string{"stop", "clean up", "stop", "clean up"}, events)
	require.Len(t, ids, 2)
	for id, calls := range ids {
		assert.NotEmpty(t, id)
		assert.Equal(t, 3, calls)
	}
}

// Env.Do opens a backend's sockets in the node's namespace, from any goroutine.
func TestSocketsCanBeOpenedOnTheNode(t *testing.T) {
	b := testbedOf(t, Factory{New: func(context.Context, Env) (sink.Sink, error) { return new(sink.Recorder), nil }},
		1)
	require.NoError(t, b.start(t.Context(), setup{}))
	node := network.PlaceNamed(theNode).V4.String()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			assert.NoError(t, b.env.Do(func() error {
				l, err := net.Listen("tcp", net.JoinHostPort(node, "0"))
				if err == nil {
					err = l.Close()
				}
				return err
			}))
		})
	}
	group.Wait()
	_, err := net.Listen("tcp", net.JoinHostPort(node, "0"))
	require.Error(t, err, "the test itself is elsewhere")
	require.ErrorIs(t, b.env.Do(func() error { return io.EOF }), io.EOF)
	require.ErrorIs(t, b.env.Do(func() error { runtime.Goexit(); return nil }), osthread.ErrEnded)
}
