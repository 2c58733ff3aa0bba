package backendtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The bystanders are younger than some services of the tenant: one with everything, one that dataplanes may have with
// others, and one with session affinity. Only their pods have addresses in 10.77.0.0/16.
const bystanderPods = "10.77."

func bystanders() []*model.Service {
	web := &model.Service{Name: model.ServiceName{Namespace: "prod", Name: "web"}, UID: "web", Created: time.Unix(2000, 0),
		ClusterIPs: addrs("10.96.0.1"), ExternalIPs: addrs("203.0.113.1"), LoadBalancerIPs: addrs("203.0.113.2"),
		LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
			Routes: model.PerFamily[model.Routes]{IPv4: routes()}}}}
	api := &model.Service{Name: model.ServiceName{Namespace: "prod", Name: "api"}, UID: "api", Created: time.Unix(2000, 0),
		ClusterIPs: addrs("10.96.0.2"),
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80,
			Routes: model.PerFamily[model.Routes]{IPv4: routes()}}}}
	cart := &model.Service{Name: model.ServiceName{Namespace: "prod", Name: "cart"}, UID: "cart",
		Created: time.Unix(2000, 0), ClusterIPs: addrs("10.96.0.3"), SessionAffinityTimeout: time.Hour, Ports: api.Ports}
	return []*model.Service{web, api, cart}
}

// bystanderEndpoint returns the i-th endpoint of a bystander. At first they have the first two.
func bystanderEndpoint(s *model.Service, i int) *model.Endpoint {
	pod := fmt.Sprintf("%s%d.%d:8080", bystanderPods, s.ClusterIPs[0].As4()[3], i)
	return endpointOf(s.PortName(s.Ports[0]), netip.MustParseAddrPort(pod))
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

// shape is how much a tenant asks for in each dimension.
type shape struct {
	services, ports, addresses, ranges, endpoints int

	slices int // each has so many endpoints of each port, and comes in a Sync of its own

	sticky    bool // all have session affinity, which a change removes
	contested bool // all services list the same addresses
	refused   bool // they ask for more than their namespace may have
}

// Slices are a dimension of pairs only.
const numDimensions, slicesDimension = 6, 5

func (s *shape) dimensions() [numDimensions]*int {
	return [...]*int{&s.services, &s.ports, &s.addresses, &s.ranges, &s.endpoints, slicesDimension: &s.slices}
}

func (s shape) String() string {
	text := fmt.Sprintf("%d services x %d ports x %d addresses, %d ranges, %d endpoints", s.services, s.ports,
		s.addresses, s.ranges, s.endpoints)
	if s.slices > 1 {
		text += fmt.Sprintf(" in each of %d slices", s.slices)
	}
	for word, is := range map[string]bool{", sticky": s.sticky, ", contested": s.contested, ", refused": s.refused} {
		if is { // one at most
			text += word
		}
	}
	return text
}

func biggest() shape {
	return shape{services: 12, ports: 12, addresses: 16, ranges: 64, endpoints: 10, slices: 1}
}

// smallest has as many endpoints as a bystander, with which it may share rules.
func smallest() shape {
	return shape{services: 1, ports: 1, addresses: 1, ranges: 1, endpoints: 2, slices: 1}
}

// cornerShape is as big as possible in the dimensions whose bits are set, and small in others.
func cornerShape(which uint64) shape {
	s, small := biggest(), smallest()
	for i, n := range s.dimensions() {
		if which>>i&1 == 0 {
			*n = *small.dimensions()[i]
		}
	}
	return s
}

// pairShapes are all pairs of dimensions at sizes that show a product: n of the one, or 32 slices or more, and 8 of the
// other, or so many ranges that nft has a set for them. With special of the one, all have session affinity and, where
// there can be many, addresses that all services contest, and ports that are refused.
func pairShapes(n, special int) (list []shape) {
	for many := range numDimensions {
		for some := range numDimensions {
			if many == some {
				continue
			}
			pair := func(n int) shape {
				s := smallest()
				*s.dimensions()[many], *s.dimensions()[some] = n, 8
				if s.ranges == 8 {
					s.ranges = 40
				}
				if many == slicesDimension {
					s.slices = max(n/32, 32)
				}
				return s
			}
			sticky, contested, refused := pair(special), pair(special), pair(special)
			sticky.sticky, contested.contested, refused.refused = true, true, true
			list = append(list, pair(n), sticky)
			if sticky.services > 1 {
				list = append(list, contested)
			}
			if sticky.services*sticky.ports > 1 {
				list = append(list, refused)
			}
		}
	}
	return list
}

func randomShape(random *rand.Rand) shape {
	s := biggest()
	dimensions := s.dimensions()
	for _, n := range dimensions[:slicesDimension] {
		switch random.IntN(3) {
		case 0:
			*n = random.IntN(3)
		case 1:
			*n = 1 + random.IntN(*n)
		}
	}
	s.services, s.ports = max(s.services, 1), max(s.ports, 1)
	return s
}

// size is what services ask for, as a [frontend.Budget] counts it, and how many there are.
type size struct {
	services, ports, frontends, ranges, endpoints, destinations int

	asked int // destinations without a maximum for each port

	stickyPorts, stickyEndpoints int // those with session affinity, and their endpoints
}

func (s size) plus(o size) size {
	return size{s.services + o.services, s.ports + o.ports, s.frontends + o.frontends, s.ranges + o.ranges,
		s.endpoints + o.endpoints, s.destinations + o.destinations, s.asked + o.asked,
		s.stickyPorts + o.stickyPorts, s.stickyEndpoints + o.stickyEndpoints}
}

// within returns what is left within a namespace's budget.
func (s size) within(b frontend.Budget) size {
	s.ports, s.frontends = min(s.ports, b.Frontends), min(s.frontends, b.Frontends)
	s.ranges = min(s.ranges, b.SourceRanges)
	s.endpoints, s.destinations = min(s.endpoints, b.Destinations), min(s.destinations, b.Destinations)
	return s
}

// tenant is the services of a namespace.
type tenant struct {
	services []*model.Service
	slices   [][]*model.Endpoint
	size     size
	overlap  bool // the source ranges of each service, and the addresses of all
	sticky   bool
}

// newTenant makes a tenant of services that API validation accepts, and of endpoints as nasty as possible.
func newTenant(random *rand.Rand, s shape, maxDestinations int) *tenant {
	t := &tenant{overlap: s.contested, sticky: s.sticky, slices: make([][]*model.Endpoint, s.slices)}
	// Addresses owned by others; targets that are not pods, or are the bystander's.
	contested := addrs("10.96.0.1", "203.0.113.1", "203.0.113.2", "192.0.2.10", "203.0.113.77", "10.96.1.0")
	targets := append(contested, addrs("127.0.0.1", bystanderPods+"1.2", bystanderPods+"1.3", bystanderPods+"2.2")...)
	for i := range s.services {
		name := model.ServiceName{Namespace: "evil", Name: fmt.Sprintf("s%d", i)}
		svc := &model.Service{Name: name, UID: name.Name, Created: time.Unix(int64(1000+random.IntN(2000)), 0),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(1 + i/256), byte(i)})}}
		for n := range s.addresses {
			at := 80 + 20*i + n + 256*(i/8*s.addresses/20) // next to the bystander's
			if t.overlap {
				at = 80 + n
			}
			a := netip.AddrFrom4([4]byte{203, byte(at >> 16), byte(113 + at>>8), byte(at)})
			if n > 0 && random.IntN(4) == 0 {
				a = contested[random.IntN(len(contested))]
			}
			if n > 0 && random.IntN(2) == 0 {
				svc.ExternalIPs = append(svc.ExternalIPs, a)
			} else {
				svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, a)
			}
			if random.IntN(8) == 0 { // duplicates, also of another kind
				svc.ExternalIPs = append(svc.ExternalIPs, a)
			}
		}
		svc.LoadBalancerSourceRanges = t.rangesOf(random, i, s.ranges)
		if random.IntN(4) == 0 || s.sticky {
			svc.SessionAffinityTimeout = time.Hour
		}
		for j := range s.ports {
			sp := model.ServicePort{Name: fmt.Sprintf("p%d", j), Protocol: []model.Protocol{model.TCP, model.UDP}[j%2],
				Port: uint16(9000 + j), Routes: model.PerFamily[model.Routes]{IPv4: routes()}}
			if j < 2 { // ports of a protocol differ in their numbers
				sp.Port = []uint16{80, 80, 443, 30080}[random.IntN(4)]
			}
			if n := 31000 + 100*i + j; random.IntN(2) == 0 && n < 1<<16 {
				sp.NodePort = uint16(n)
			}
			svc.Ports = append(svc.Ports, sp)
			for k := range s.slices * s.endpoints {
				a := netip.AddrFrom4([4]byte{10, byte(88 + i>>8), byte(i + k>>8), byte(k)})
				if random.IntN(3) == 0 {
					a = targets[random.IntN(len(targets))]
				}
				target := netip.AddrPortFrom(a, uint16(80+random.IntN(3)))
				slice := &t.slices[k/s.endpoints]
				*slice = append(*slice, endpointOf(svc.PortName(sp), target))
			}
		}
		t.services = append(t.services, svc)
	}
	t.count(maxDestinations)
	return t
}

// rangesOf returns source ranges. Those that overlap may all be one.
func (t *tenant) rangesOf(random *rand.Rand, i, n int) (list []netip.Prefix) {
	for k := range n {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(51 + i + k>>7), byte(2 * k), byte(k)}), 24+random.IntN(9))
		if t.overlap && random.IntN(8) == 0 {
			p = netip.PrefixFrom(p.Addr(), 8+random.IntN(24))
		}
		list = append(list, p.Masked())
	}
	return list
}

// count works out the size of a tenant.
func (t *tenant) count(maxDestinations int) {
	endpoints := map[model.PortName]int{}
	t.size = size{services: len(t.services)}
	for _, slice := range t.slices {
		t.size.endpoints += len(slice)
		for _, ep := range slice {
			endpoints[ep.Port]++
		}
	}
	for _, s := range t.services {
		all := slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs)
		slices.SortFunc(all, netip.Addr.Compare)
		addresses := len(slices.Compact(all))
		if len(s.LoadBalancerIPs) > 0 {
			t.size.ranges += len(s.LoadBalancerSourceRanges)
		}
		for _, sp := range s.Ports {
			frontends := addresses
			if sp.NodePort != 0 {
				frontends++
			}
			destinations := frontends * endpoints[s.PortName(sp)]
			t.size.asked += destinations
			if maxDestinations > 0 {
				destinations = min(destinations, maxDestinations)
			}
			t.size.ports++
			if s.SessionAffinityTimeout > 0 {
				t.size.stickyPorts++
				t.size.stickyEndpoints += endpoints[s.PortName(sp)]
			}
			t.size.frontends += frontends
			t.size.destinations += destinations
		}
	}
}

// change replaces every service with one of the same addresses in another order, other ranges and one port less, and
// without session affinity if all had it; and it deletes every third endpoint.
func (t *tenant) change(random *rand.Rand, d Setter) {
	for i, old := range t.services {
		s := *old
		s.LoadBalancerSourceRanges = t.rangesOf(random, 100+i, len(s.LoadBalancerSourceRanges))
		s.ExternalIPs = slices.Clone(s.ExternalIPs)
		random.Shuffle(len(s.ExternalIPs), func(i, j int) {
			s.ExternalIPs[i], s.ExternalIPs[j] = s.ExternalIPs[j], s.ExternalIPs[i]
		})
		if t.sticky {
			s.SessionAffinityTimeout = 0
		}
		if n := len(s.Ports); n > 1 {
			s.Ports = s.Ports[: n-1 : n-1]
		}
		t.services[i] = &s
		d.SetService(&s)
	}
	for i, slice := range t.slices {
		var kept []*model.Endpoint
		for n, ep := range slice {
			if n%3 == 2 {
				d.DeleteEndpoint(ep.Key())
			} else {
				kept = append(kept, ep)
			}
		}
		t.slices[i] = kept
	}
}

// stick switches session affinity on.
func (t *tenant) stick(d Setter) {
	for i, old := range t.services {
		s := *old
		s.SessionAffinityTimeout = time.Hour
		t.services[i] = &s
		d.SetService(&s)
	}
}

// set hands the services and a slice to the sink.
func (t *tenant) set(d Setter, slice int) {
	if slice == 0 {
		for _, s := range t.services {
			d.SetService(s)
		}
	}
	for _, ep := range t.slices[slice] {
		d.SetEndpoint(ep)
	}
}

func (t *tenant) remove(d Setter) {
	for _, s := range t.services {
		d.DeleteService(s.Name)
	}
	for _, slice := range t.slices {
		for _, ep := range slice {
			d.DeleteEndpoint(ep.Key())
		}
	}
}
