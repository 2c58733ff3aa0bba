package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A program of the node listens at loopback addresses, for example the proxy of S36a: the kernel does not rewrite its
// flows. Only with localhostNodePorts, in IPv4, rules serve node ports there; then such a flow began before them.
func TestFlowsOfLoopbackNodePorts(t *testing.T) {
	loopback := map[model.Family]netip.Addr{model.IPv4: netip.MustParseAddr("127.0.0.1"), model.IPv6: netip.IPv6Loopback()}
	addresses := func() nodeaddr.Addresses {
		a := nodePorts()
		a.IPs = append(a.IPs, loopback[model.IPv4], loopback[model.IPv6])
		return a
	}
	for _, f := range model.Families() {
		for _, rules := range []bool{false, true} {
			t.Run(fmt.Sprint(f, ", localhostNodePorts ", rules), func(t *testing.T) {
				table := &fakeTable{}
				r := Wrap(t.Context(), nil, Options{Table: table, Families: []model.Family{f}, Addresses: addresses,
					LocalhostNodePorts: rules})
				to := netip.AddrPortFrom(loopback[f], 30053)
				live := flowTo(f, 1000, to, netip.AddrPort{})
				gone := flowTo(f, 1001, to, netip.AddrPortFrom(host(f, 9), 5353)) // rewritten by rules, to an endpoint that is gone
				node := flowTo(f, 1002, netip.AddrPortFrom(host(f, nodeIP), 30053), netip.AddrPort{})
				table.Add(live, gone, node)

				describe(r, nil, []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)})
				require.NoError(t, r.Sync(t.Context()))
				r.Wait()
				var want []Flow
				if f == model.IPv6 || !rules {
					want = []Flow{live}
				}
				require.ElementsMatch(t, want, table.Flows())
			})
		}
	}
}
