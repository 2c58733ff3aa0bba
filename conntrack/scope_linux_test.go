package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// refusedFilter is one that no kernel knows, and that is refused like any filter by an older one.
func refusedFilter(b *nfnetlink.Builder) {
	filter := b.Open(ctaFilter)
	b.Bytes(ctaFilterOrigFlags, []byte{0xff, 0xff, 0xff, 0xff})
	b.Close(filter)
}

func TestAKernelThatRefusesFiltersIsAskedForAllFlowsOnce(t *testing.T) {
	f := model.IPv4
	dns, target := netip.AddrPortFrom(host(f, 1), 53), netip.AddrPortFrom(host(f, 2), 53)
	for name, filter := range map[string]func(Selection) func(*nfnetlink.Builder){
		"refused": func(Selection) func(*nfnetlink.Builder) { return refusedFilter },
		"ignored": func(Selection) func(*nfnetlink.Builder) { return nil },
	} {
		for _, only := range [][]Selection{{{Destination: netip.AddrPortFrom(host(f, 9), 53)}, {ReplySource: target}},
			nil} {
			t.Run(fmt.Sprintf("%s/%d selections", name, len(only)), func(t *testing.T) {
				table := newKernelTable(t)
				table.Add(manyFlows(f, 10, dns, target)...)
				shown := 0
				deleted, err := table.deleteWith(t.Context(), f, only, filter, func(Flow) bool { shown++; return true })
				require.NoError(t, err)
				require.Equal(t, 10, deleted)
				require.Equal(t, 10, shown, "each once")
				require.Empty(t, table.Flows())
				require.Equal(t, name == "refused" || len(only) > 0, table.cannotFilter.Load(), "it is not asked again")
			})
		}
	}
}

func TestTheKernelShowsOnlyWhatIsSelected(t *testing.T) {
	for _, f := range model.Families() {
		at := func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(host(f, n), port) }
		table := newKernelTable(t)
		var flows []Flow
		for i, to := range []netip.AddrPort{at(1, 53), at(1, 54), at(2, 53), at(2, 30053)} {
			for j, target := range []netip.AddrPort{at(11, 5353), at(11, 5354), at(12, 5353), {}} {
				flows = append(flows, flowTo(f, uint16(4000+10*i+j), to, target))
			}
		}
		table.Add(flows...)
		table.create(flowTo(f, 5000, at(1, 53), at(11, 5353)), unix.IPPROTO_TCP)
		for name, only := range map[string][]Selection{
			"a destination":              {{Destination: at(1, 53)}},
			"a port at any address":      {{Destination: netip.AddrPortFrom(netip.Addr{}, 30053)}},
			"any port at an address":     {{Destination: netip.AddrPortFrom(host(f, 2), 0)}},
			"an endpoint":                {{ReplySource: at(11, 5353)}},
			"an endpoint of a service":   {{Destination: at(2, 53), ReplySource: at(12, 5353)}},
			"two things":                 {{Destination: at(1, 54)}, {ReplySource: at(12, 5353)}},
			"nothing that there is":      {{ReplySource: at(99, 1)}},
			"everything, to be explicit": {{}},
			"an address and an endpoint": {{Destination: netip.AddrPortFrom(host(f, 2), 0)}, {ReplySource: at(11, 5353)}},
		} {
			var want []Flow
			for _, flow := range flows {
				for _, s := range filterable(f, only) {
					if s.matches(flow) {
						want = append(want, flow) // once for each
					}
				}
			}
			var seen []Flow
			_, err := table.DeleteUDP(t.Context(), f, only, func(flow Flow) bool {
				seen = append(seen, flow)
				return false
			})
			require.NoError(t, err, name)
			require.ElementsMatch(t, want, seen, "%v: %s", f, name)
			require.False(t, table.cannotFilter.Load(), name)
		}
		deleted, err := table.DeleteUDP(t.Context(), f, []Selection{{ReplySource: at(11, 5353)}},
			func(flow Flow) bool { return flow.ReplySource == at(11, 5353) })
		require.NoError(t, err)
		require.Equal(t, 4, deleted)
		require.Len(t, table.Flows(), len(flows)-4)
	}
}

func TestFlowsToAnAddressThatTheNodeGainsAreDeletedFromTheKernel(t *testing.T) {
	testGainedAddress(t, func(t *testing.T) testTable { return newKernelTable(t) })
}

func TestFlowsToTheFormerOwnerOfAnAddressAreDeletedInTheKernel(t *testing.T) {
	testContests(t, func(t *testing.T) testTable { return newKernelTable(t) })
}

// By default the reconciler asks the kernel for the node's addresses.
func TestAFlowToTheNumberOfANodePortPassesByUnlessItIsToThisNode(t *testing.T) {
	for _, f := range model.Families() {
		table := newKernelTable(t)
		table.ns.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			bits := host(f, nodeIP).BitLen()
			ipnet := &net.IPNet{IP: host(f, nodeIP).AsSlice(), Mask: net.CIDRMask(bits, bits)}
			return netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipnet})
		})
		local := flowTo(f, 4000, netip.AddrPortFrom(host(f, nodeIP), 30053), netip.AddrPort{})
		elsewhere := flowTo(f, 4001, netip.AddrPortFrom(host(f, otherIP), 30053), netip.AddrPort{})
		table.Add(local, elsewhere)
		r := Wrap(t.Context(), nil, Options{Table: table.Kernel})
		describe(r, nil, []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)})
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Equal(t, []Flow{elsewhere}, table.Flows())
	}
}
