package ipvs

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// bigService describes one service, larger than any that is likely to exist.
type bigService struct{ endpoints, addresses, ports int }

func (z bigService) String() string {
	return fmt.Sprintf("%d-endpoints-%d-addresses-%d-ports", z.endpoints, z.addresses, z.ports)
}

// bigSizes are the biggest services that must cost no more than what changes.
func bigSizes() []bigService { return []bigService{{50_000, 1, 1}, {10, 10_000, 1}, {2, 1, 8_000}} }

// service returns the service with more or fewer addresses and ports than it has.
func (z bigService) service(addresses, ports int) *model.Service {
	s := fm.Service("big/one").DetectsLocalPods().ClusterIP("10.96.0.1")
	for i := range z.addresses + addresses {
		s.ExternalIP(fmt.Sprintf("198.18.%d.%d", i>>8, i&255))
	}
	for i := range z.ports + ports {
		s.Port(fmt.Sprintf("p%d", i), uint16(1+i))
	}
	return s.Build()
}

func (z bigService) endpoint(port, i int) *model.Endpoint {
	target := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)}), 8080)
	return fm.Endpoint(fmt.Sprintf("big/one:p%d/TCP", port), target.String()).Build()
}

func (z bigService) start(tb testing.TB) (*kernel, *Backend) {
	k := newKernel(tb)
	b := k.start(tb, func(o *Options) { o.Families = []model.Family{model.IPv4} })
	b.SetNode(backendtest.Node())
	b.SetService(z.service(0, 0))
	for p := range z.ports {
		for i := range z.endpoints {
			b.SetEndpoint(z.endpoint(p, i))
		}
	}
	require.NoError(tb, b.Sync(tb.Context()))
	k.ipvs.TakeCalls()
	return k, b
}

// A change of the largest services costs only the requests for what changed.
func TestABigServiceCostsWhatChanges(t *testing.T) {
	for _, z := range bigSizes() {
		t.Run(z.String(), func(t *testing.T) {
			k, b := z.start(t)
			cost := func(writes, elements int) {
				t.Helper()
				changed := k.nft.Applied()
				require.NoError(t, b.Sync(t.Context()))
				calls := k.ipvs.TakeCalls()
				require.Len(t, calls.Writes, writes)
				require.Zero(t, calls.Reads)
				require.Equal(t, elements, k.nft.Applied()-changed, "transactions of the packet filter")
			}
			servers := 1 + z.addresses // of a port
			b.DeleteEndpoint(z.endpoint(0, 1).Key())
			b.SetEndpoint(z.endpoint(0, z.endpoints))
			cost(2*servers, 0)

			// An address: a virtual server at each port, its endpoints, the address itself.
			b.SetService(z.service(1, 0))
			cost(z.ports*(1+z.endpoints)+1, 1)

			// A port without endpoints: nothing but virtual servers, and refusal.
			b.SetService(z.service(1, 1))
			cost(servers+1, 1)

			// One address less, at the port that has no endpoints, too. Nothing is connected there.
			b.SetService(z.service(0, 1))
			require.NoError(t, b.Sync(t.Context()))
			calls := k.ipvs.TakeCalls()
			require.Len(t, calls.Writes, z.ports+2)
			require.Len(t, calls.Reads, z.ports+1)
		})
	}
}
