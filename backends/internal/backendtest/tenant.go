package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// TenantBackend is a backend that describes what it serves.
type TenantBackend interface {
	Backend
	sink.Describer
}

// Tenants is a search for the services of one namespace that cost the most: random ones, as nasty as they may be.
type Tenants struct {
	// New returns a backend on an empty dataplane, and a function that returns how much the dataplane has been asked to
	// do since its last call: elements, rules or requests.
	New func(t *testing.T) (TenantBackend, func() int)
	// Products: the dataplane has each endpoint once for each frontend.
	Products bool
	// PerUnit is how much the dataplane may be asked to do for each frontend, source range and endpoint.
	PerUnit int
	// Slack is how much more a bystander's change may cost than without the tenant.
	Slack int
}

// The bystander, which is younger than some services of the tenant. Only its pods have addresses in 10.77.0.0/16.
const bystanderPods = "10.77.0."

func bystander() (*model.Service, []*model.Endpoint) {
	name := model.ServiceName{Namespace: "prod", Name: "web"}
	s := &model.Service{Name: name, UID: "prod", Created: time.Unix(2000, 0), ClusterIPs: addrs("10.96.0.1"),
		ExternalIPs: addrs("203.0.113.1"), LoadBalancerIPs: addrs("203.0.113.2"),
		LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		Ports:                    []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080, RoutesIPv4: routes()}}}
	return s, []*model.Endpoint{bystanderEndpoint(1), bystanderEndpoint(2)}
}

func bystanderEndpoint(i int) *model.Endpoint {
	s := model.PortName{Service: model.ServiceName{Namespace: "prod", Name: "web"}, Port: "http", Protocol: model.TCP}
	return endpointOf(s, netip.MustParseAddrPort(fmt.Sprintf("%s%d:8080", bystanderPods, i)))
}

func endpointOf(p model.PortName, target netip.AddrPort) *model.Endpoint {
	return &model.Endpoint{Port: p, Target: target, Sets: model.ClusterSet, Ready: true, Serving: true, Node: "other"}
}

func routes() model.Routes {
	return model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true, DetectsLocalPods: true})
}

func addrs(list ...string) (all []netip.Addr) {
	for _, text := range list {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// tenant is a random tenant, with the number of its frontends, source ranges and endpoints.
type tenant struct {
	services  []*model.Service
	endpoints []*model.Endpoint
	units     int
}

// newTenant makes a tenant of services that API validation accepts, and of endpoints that it does not look at.
func newTenant(dice *rand.Rand, products bool) *tenant {
	t := &tenant{}
	// Addresses that are others', and targets that are no pods.
	contested := addrs("10.96.0.1", "203.0.113.1", "203.0.113.2", "192.0.2.10", "203.0.113.77")
	targets := addrs("10.96.0.1", "10.96.1.0", "192.0.2.10", "127.0.0.1", "203.0.113.1", "203.0.113.2", "203.0.113.77")
	size := func(most int) int { return []int{dice.IntN(2), dice.IntN(1 + most), most}[dice.IntN(3)] }
	for i := range 1 + size(6) {
		name := model.ServiceName{Namespace: "evil", Name: fmt.Sprintf("s%d", i)}
		s := &model.Service{Name: name, UID: name.Name, Created: time.Unix(int64(1000+dice.IntN(2000)), 0),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}}
		address := func(n int) netip.Addr {
			if dice.IntN(4) == 0 {
				return contested[dice.IntN(len(contested))]
			}
			return netip.AddrFrom4([4]byte{203, 0, byte(200 + i), byte(n)})
		}
		for n := range size(40) {
			s.ExternalIPs = append(s.ExternalIPs, address(n))
		}
		for n := range size(40) {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, address(20+n))
		}
		for n := range size(120) { // they overlap
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(n / 3), byte(n)}), 16+dice.IntN(17))
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, p.Masked())
		}
		if dice.IntN(4) == 0 {
			s.SessionAffinityTimeout = time.Hour
		}
		each := 1 + len(s.ExternalIPs) + len(s.LoadBalancerIPs)
		n := size(12)
		for j := range 1 + size(30) {
			sp := model.ServicePort{Name: fmt.Sprintf("p%d", j), Protocol: []model.Protocol{model.TCP, model.UDP}[j%2],
				Port: uint16([]int{80, 443, 30080, 9000 + j}[dice.IntN(4)]), RoutesIPv4: routes()}
			if j > 1 { // ports of a protocol differ in their numbers
				sp.Port = uint16(9000 + j)
			}
			if dice.IntN(2) == 0 {
				sp.NodePort = uint16(31000 + 100*i + j)
			}
			s.Ports = append(s.Ports, sp)
			t.units += each + 1
			for k := range n {
				a := netip.AddrFrom4([4]byte{10, 88, byte(i), byte(k)})
				if dice.IntN(3) == 0 {
					a = targets[dice.IntN(len(targets))]
				}
				t.endpoints = append(t.endpoints, endpointOf(s.PortName(sp), netip.AddrPortFrom(a, uint16(80+dice.IntN(3)))))
				if t.units++; products {
					t.units += each
				}
			}
		}
		t.units += len(s.LoadBalancerSourceRanges)
		t.services = append(t.services, s)
	}
	return t
}

// Search tries tenants. For each, the work of its Sync has to be linear in what it asks for, and a bystander keeps what
// it has, at the cost that its changes had before.
func (x Tenants) Search(t *testing.T, seeds int) {
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 26))
			b, work := x.New(t)
			s, eps := bystander()
			Set(t, b, Node(), s)
			for _, ep := range eps {
				b.SetEndpoint(ep)
			}
			require.NoError(t, b.Sync(t.Context()))
			change := func() int {
				work()
				for _, i := range []int{3, 2} { // one goes and another one comes, and back
					b.DeleteEndpoint(bystanderEndpoint(5 - i).Key())
					b.SetEndpoint(bystanderEndpoint(i))
					x.sync(t, b)
				}
				return work()
			}
			cost := change()
			has := x.bystanderHas(t, b) // draining endpoints among it

			tenant := newTenant(dice, x.Products)
			for _, s := range tenant.services {
				b.SetService(s)
			}
			for _, ep := range tenant.endpoints {
				b.SetEndpoint(ep)
			}
			x.sync(t, b)
			assert.LessOrEqual(t, work(), x.PerUnit*tenant.units+100, "for %d units", tenant.units)
			assert.Equal(t, has, x.bystanderHas(t, b), "the bystander has lost something")
			assert.LessOrEqual(t, change(), cost+x.Slack, "a change of the bystander")
			for _, s := range tenant.services {
				b.DeleteService(s.Name)
			}
			for _, ep := range tenant.endpoints {
				b.DeleteEndpoint(ep.Key())
			}
			x.sync(t, b)
			assert.LessOrEqual(t, work(), x.PerUnit*tenant.units+100, "to remove %d units", tenant.units)
			assert.Equal(t, has, x.bystanderHas(t, b), "after the tenant is gone")
		})
	}
}

// sync applies changes. Only the tenant's service ports may be refused.
func (x Tenants) sync(t *testing.T, b TenantBackend) {
	t.Helper()
	err := b.Sync(context.Background())
	if err == nil {
		return
	}
	require.Zero(t, sink.FailedFamilies(err), "%v", err)
	for _, e := range sink.PortErrors(err) {
		assert.Equal(t, "evil", e.Port.Service.Namespace, "%v", errors.Unwrap(e))
	}
}

// bystanderHas returns how often the rules of the bystander name its addresses and pods.
func (x Tenants) bystanderHas(t *testing.T, b TenantBackend) (counts [5]int) {
	s, _ := bystander()
	text, err := b.DescribeService(t.Context(), s.Name)
	require.NoError(t, err)
	for i, part := range []string{bystanderPods, "10.96.0.1", "203.0.113.1", "203.0.113.2", "30080"} {
		counts[i] = strings.Count(text, part)
	}
	return counts
}
