package conntrack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testdice"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestTargetsAreWhatWasDescribedLast(t *testing.T) {
	port := model.PortName{Port: "dns", Protocol: model.UDP}
	for seed := range uint64(200) {
		dice := testdice.Seeded(seed)
		targets, want := newTargets(), map[netip.AddrPort]bool{}
		for range 8 {
			before, unchanged := targets.applied[port], maps.Clone(want)
			copied := slices.Clone(before)
			for range dice.Roll(7) {
				target := netip.AddrPortFrom(host(model.IPv4, 1+dice.Roll(9)), 53)
				serves := dice.Roll(2) == 0
				targets.note(port, target, serves)
				if delete(want, target); serves {
					want[target] = true
				}
			}
			targets.apply()
			after := targets.applied[port]
			require.Equal(t, slices.SortedFunc(maps.Keys(want), model.CompareTargets), after, "seed %d", seed)
			require.Equal(t, copied, before, "seed %d: a list that was applied is not written to", seed)
			if len(after) > 0 && maps.Equal(want, unchanged) {
				require.Same(t, &before[0], &after[0], "seed %d: what reverts is no change", seed)
			}
		}
		require.Empty(t, targets.changes)
	}
}

// BenchmarkReplaceEndpoint is from the description to the end of a Sync that replaces one UDP endpoint of a service.
// What it costs grows neither with the square of the ports nor with what it takes to sort the endpoints.
func BenchmarkReplaceEndpoint(b *testing.B) {
	for _, size := range []struct{ ports, endpoints int }{{1, 10}, {1, 1000}, {1, 50_000}, {100, 10}, {8000, 10}} {
		b.Run(fmt.Sprintf("ports=%d/endpoints=%d", size.ports, size.endpoints), func(b *testing.B) {
			r := Wrap(b.Context(), nil, Options{Table: &Fake{}, Addresses: nodePorts})
			service := &model.Service{Name: model.ServiceName{Namespace: "default", Name: "rtp"},
				ClusterIPs: []netip.Addr{host(model.IPv4, clusterIP)}}
			for p := range size.ports {
				service.Ports = append(service.Ports,
					model.ServicePort{Name: fmt.Sprint(p), Protocol: model.UDP, Port: uint16(1 + p)})
			}
			r.SetService(service)
			endpoint := func(p, e int) *model.Endpoint {
				return &model.Endpoint{Port: service.PortName(service.Ports[p]), Sets: model.ClusterSet, Serving: true,
					Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(e >> 16), byte(e >> 8), byte(e)}), 53)}
			}
			for p := range size.ports {
				for e := range size.endpoints {
					r.SetEndpoint(endpoint(p, e))
				}
			}
			require.NoError(b, r.Sync(b.Context()))
			r.Wait()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				r.DeleteEndpoint(endpoint(0, n%2*size.endpoints).Key())
				r.SetEndpoint(endpoint(0, (n+1)%2*size.endpoints))
				_ = r.Sync(b.Context())
				n++
			}
			b.StopTimer()
			r.Wait()
		})
	}
}
