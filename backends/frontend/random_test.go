package frontend

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// described is the state that a random walk has described, kept the simplest way there is.
type described struct {
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	inWave    map[model.ServiceName]bool // services that were set or deleted: once in a wave, as [sink.Sink] has it
	owned     map[Key]owned
	versions  map[model.ServiceName]string // of the services, as of the last wave
	// nodeAddrs are the node's addresses, and contested those and the ports that services asked for in the last wave.
	nodeAddrs []netip.Addr
	contested map[Key]bool
	owners    map[Key]model.PortName // of the keys that several ports ask for
	// limit is what the services of a namespace may ask for.
	limit Budget
}

// TestAnyWalkIsFollowedByItsDifferences: whatever is described, fails, is repaired or taken back, a dataplane that
// follows the differences ends with what the described state says.
func TestAnyWalkIsFollowedByItsDifferences(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random, refusals := rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))
			r := newRig(t)
			reported, contests, lost := r.follow(), r.followContests(t), r.followExternal(t)
			d := described{services: map[model.ServiceName]*model.Service{},
				endpoints: map[model.EndpointKey]*model.Endpoint{}, inWave: map[model.ServiceName]bool{},
				versions: map[model.ServiceName]string{}, limit: r.budget.Namespace}
			if seed%2 == 0 { // with limits that services meet now and then
				d.limit = Budget{Frontends: 10, SourceRanges: 2, RestrictedPorts: 3, Destinations: 40, StickyEndpoints: 8,
					StickyPorts: 4}
				r.budget.Namespace, r.budget.Service.Destinations, r.budget.Service.StickyEndpoints = d.limit, 25, 5
				r.budget.affinity, r.budget.Service.StickyPorts, r.budget.Service.RestrictedPorts = true, 2, 1
				r.budget.blockSize = 1 + int(seed/2)%2
			}
			for range 80 {
				clear(d.inWave)
				if random.IntN(4) == 0 {
					r.nodeAddrs = nil
					for i := range 5 {
						if random.IntN(2) == 0 {
							r.nodeAddrs = append(r.nodeAddrs, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}))
						}
					}
				}
				for range random.IntN(6) {
					d.step(random, r)
				}
				r.v4.fail, r.v6.fail, r.v4.early = nil, nil, random.IntN(2) == 0
				if random.IntN(5) == 0 {
					r.v4.fail = errDataplane
				}
				if random.IntN(5) == 0 {
					r.v6.fail = errDataplane
				}
				switch random.IntN(8) {
				case 0:
					r.ForceResync()
				case 1:
					r.ResyncFailed()
				}
				for _, m := range []*mirror{r.v4, r.v6} {
					m.returns = refusals.IntN(2) == 0
					m.refuse = func(*PortChange) outcome { return max(taken, outcome(refusals.IntN(12)-8)) }
				}
				err := r.Sync(quiet(t))
				var refused []string
				for _, e := range sink.PortErrors(err) {
					refused = append(refused, fmt.Sprint(e.Port, e.Family))
				}
				assert.ElementsMatch(t, slices.Concat(r.v4.refusedIn(model.IPv4), r.v6.refusedIn(model.IPv6),
					d.exceedIn(model.IPv4), d.exceedIn(model.IPv6)), refused)
				d.settle(r.nodeAddrs)
				r.compareReport(t, reported)
				r.compareExternal(t, lost)
				assert.Equal(t, d.owners, contests[model.IPv4])
				if r.v4.fail == nil {
					served := map[Key]model.PortName{}
					for k, o := range d.owned {
						if !o.isClaimed && !r.v4.isRefused(o.port) {
							served[k] = o.port
						}
					}
					assert.Equal(t, served, ownersOf(r.v4))
					d.compareAffinity(t, model.IPv4, r.v4)
				}
				if random.IntN(8) == 0 {
					r.v4.fail, r.v6.fail, r.v4.returns, r.v6.returns = nil, nil, false, false
					r.repair(t)
				}
				if t.Failed() {
					return
				}
			}
			r.v4.fail, r.v6.fail, r.v4.refuse, r.v6.refuse = nil, nil, nil, nil
			r.ForceResync()
			r.exceed(t)
			d.compare(t, model.IPv4, r.v4)
			d.compare(t, model.IPv6, r.v6)

			for k := range d.endpoints {
				r.DeleteEndpoint(k)
			}
			for n := range d.services {
				r.DeleteService(n)
			}
			r.sync(t)
			assert.Empty(t, r.services, "what has gone is forgotten")
			assert.Empty(t, r.tenants)
			assert.Empty(t, r.budget.due)
			assert.Empty(t, reported)
			assert.Empty(t, contests[model.IPv4])
			assert.Empty(t, contests[model.IPv6])
			assert.Empty(t, lost)
			assert.Empty(t, r.reporter.losses)
			for _, f := range r.families {
				assert.Empty(t, f.owners.byKey)
				assert.Empty(t, f.owners.nodePorts.asked)
				assert.Empty(t, f.owners.nodePorts.claims)
				assert.Empty(t, f.owners.nodePorts.changed)
				assert.Empty(t, f.hairpins.n)
				assert.Empty(t, f.clusterIPs.n)
				assert.Empty(t, f.healthChecks.n)
				assert.Empty(t, f.ledger.refused)
				assert.Empty(t, f.ledger.obsolete)
				assert.NoError(t, f.ledger.errors.error())
				assert.Empty(t, f.excesses.of)
				assert.Empty(t, f.unreached)
				assert.NoError(t, f.excesses.errors.error())
			}
		})
	}
}

func (d *described) step(random *rand.Rand, r *rig) {
	name := model.ServiceName{Namespace: "ns", Name: fmt.Sprintf("s%d", random.IntN(4))}
	action := random.IntN(10)
	if action < 4 {
		if d.inWave[name] {
			return
		}
		d.inWave[name] = true
	}
	switch action {
	case 0, 1, 2:
		s := randomService(random, name)
		d.services[name] = s
		r.SetService(s)
	case 3:
		for k := range d.endpoints {
			if k.Port.Service == name {
				r.DeleteEndpoint(k)
				delete(d.endpoints, k)
			}
		}
		delete(d.services, name)
		r.DeleteService(name)
	case 4:
		for k := range d.endpoints {
			r.DeleteEndpoint(k)
			delete(d.endpoints, k)
			return
		}
	default:
		a := netip.AddrFrom4([4]byte{10, 1, 0, byte(random.IntN(50))})
		if random.IntN(3) == 0 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(20))})
		}
		ep := &model.Endpoint{
			Port:   model.PortName{Service: name, Port: fmt.Sprintf("p%d", random.IntN(2)), Protocol: model.TCP},
			Target: netip.AddrPortFrom(a, uint16(random.IntN(3))), // 0 is not valid
			Sets:   model.EndpointSets(random.IntN(4)), Local: random.IntN(3) == 0, Serving: random.IntN(2) == 0}
		d.endpoints[ep.Key()] = ep
		r.SetEndpoint(ep)
	}
}

func randomService(random *rand.Rand, name model.ServiceName) *model.Service {
	version := max(0, random.IntN(4)-1)
	s := &model.Service{Name: name, Created: time.Unix(int64(2*version+int(name.Name[1]))%3, 0)}
	if version > 0 {
		s.UID = fmt.Sprint(version)
	}
	if random.IntN(5) > 0 {
		s.ClusterIPs = append(s.ClusterIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(random.IntN(5))}))
	}
	if random.IntN(2) > 0 {
		s.ClusterIPs = append(s.ClusterIPs, netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 15: byte(random.IntN(5))}))
	}
	if random.IntN(3) == 0 {
		s.HealthCheck = &model.HealthCheck{NodePort: 32000 + uint16(random.IntN(2)),
			LocalEndpoints: model.PerFamily[int]{IPv4: random.IntN(2)}}
	}
	for i := range 5 {
		if random.IntN(3) == 0 {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}))
		}
		if random.IntN(4) == 0 {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}))
		}
	}
	if len(s.ExternalIPs) < 2 {
		s.SessionAffinityTimeout = time.Hour
	}
	if random.IntN(3) == 0 {
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	for i := range random.IntN(4) {
		p := model.ServicePort{Name: fmt.Sprintf("p%d", i%2), Protocol: model.TCP, Port: uint16(random.IntN(3))}
		if random.IntN(3) == 0 {
			p.Port = 30000
		}
		if random.IntN(3) == 0 {
			p.NodePort = 30000 + uint16(random.IntN(2))
		}
		policy := model.RoutePolicy{
			Internal: model.TrafficPolicyCluster, External: model.TrafficPolicyCluster, ClusterIP: true,
			ExternalAddresses: random.IntN(3) > 0, DetectsLocalPods: random.IntN(2) == 0}
		if random.IntN(2) == 0 {
			policy.External = model.TrafficPolicyLocal
		}
		for _, a := range s.ClusterIPs {
			if a.Is4() {
				p.Routes.IPv4 = model.NewRoutes(policy)
			} else {
				p.Routes.IPv6 = model.NewRoutes(policy)
			}
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// want is a service port that wants a key.
type want struct {
	port model.PortName
	kind Kind
	s    *model.Service
}

// wants lists the service ports that want each key, of those within the limits.
func (d *described) wants(f model.Family) map[Key][]want {
	wants := d.asks(f)
	exceed, _ := d.decide(f)
	for k, list := range wants {
		list = slices.DeleteFunc(list, func(w want) bool { return slices.Contains(exceed, fmt.Sprint(w.port, f)) })
		if wants[k] = list; len(list) == 0 {
			delete(wants, k)
		}
	}
	return wants
}

// exceedIn lists the ports that exceed the limits of their namespace or service.
func (d *described) exceedIn(f model.Family) []string {
	exceed, _ := d.decide(f)
	return exceed
}

// decide lists the ports that are not served because of limits, and those that have affinity, with their family.
func (d *described) decide(f model.Family) (exceed, sticky []string) {
	frontends := map[model.PortName]int{}
	for _, wants := range d.asks(f) {
		for _, w := range wants {
			frontends[w.port]++
		}
	}
	services := slices.SortedFunc(maps.Values(d.services), func(a, b *model.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
	left, limited := d.limit, d.limit.Frontends < 100
	for _, s := range services {
		ports := map[model.PortName]model.Routes{}
		for _, sp := range s.Ports {
			name, routes := s.PortName(sp), sp.Routes.At(f)
			if _, second := ports[name]; !second && routes.Sets() != 0 && sp.Port != 0 {
				ports[name] = *routes
			}
		}
		ranges, own, ownRestricted, ownSticky, ownPorts, any := 0, 25, 1, 5, 2, false
		if hasVIP(f, s) {
			ranges = len(s.SourceRanges(f))
		}
		for _, name := range slices.SortedFunc(maps.Keys(ports), model.PortName.Compare) {
			n, endpoints := frontends[name], 0
			for k, ep := range d.endpoints {
				if k.Port == name && ep.Family() == f {
					endpoints++
				}
			}
			destinations := endpoints * max(n, 1)
			restricted := 0
			if ranges > 0 && ports[name].External.Endpoints != 0 {
				restricted = 1
			}
			if limited && (ranges > left.SourceRanges || n > left.Frontends ||
				destinations > min(own, left.Destinations) || restricted > min(ownRestricted, left.RestrictedPorts)) {
				exceed = append(exceed, fmt.Sprint(name, f))
				continue
			}
			own, any = own-destinations, true
			left.Frontends, left.Destinations = left.Frontends-n, left.Destinations-destinations
			ownRestricted, left.RestrictedPorts = ownRestricted-restricted, left.RestrictedPorts-restricted
			one := min(1, endpoints)
			if s.SessionAffinityTimeout > 0 && (!limited || endpoints <= min(ownSticky, left.StickyEndpoints) &&
				one <= min(ownPorts, left.StickyPorts)) {
				ownSticky, left.StickyEndpoints = ownSticky-endpoints, left.StickyEndpoints-endpoints
				ownPorts, left.StickyPorts = ownPorts-one, left.StickyPorts-one
				sticky = append(sticky, fmt.Sprint(name, f))
			}
		}
		if any {
			left.SourceRanges -= ranges
		}
	}
	return exceed, sticky
}

// asks lists the service ports that ask for each key.
func (d *described) asks(f model.Family) map[Key][]want {
	wants := map[Key][]want{}
	for _, s := range d.services {
		seen := map[string]bool{}
		for _, sp := range s.Ports {
			routes := *sp.Routes.At(f)
			if routes.Sets() == 0 || sp.Port == 0 || seen[sp.Name] {
				continue
			}
			seen[sp.Name] = true
			own := map[Key]Kind{}
			for _, a := range s.ExternalIPs {
				own[Key{a, sp.Port, sp.Protocol}] = ExternalIP
			}
			for _, a := range s.LoadBalancerIPs {
				own[Key{a, sp.Port, sp.Protocol}] = LoadBalancerIP
			}
			own[Key{Port: sp.NodePort, Protocol: sp.Protocol}] = NodePort
			if routes.External.Endpoints == 0 {
				clear(own)
			}
			own[Key{s.ClusterIP(f), sp.Port, sp.Protocol}] = ClusterIP
			for k, kind := range own {
				if k.Port != 0 && (k.IsNodePort() || model.FamilyOf(k.Addr) == f) {
					wants[k] = append(wants[k], want{s.PortName(sp), kind, s})
				}
			}
		}
	}
	return wants
}

// owned is the owner of a key; isClaimed says that it is the owner of the node port of that number.
type owned struct {
	port      model.PortName
	isClaimed bool
}

// settle computes the owner of each IPv4 key after a wave; owners from before keep their keys if they are the same
// services.
func (d *described) settle(nodeAddrs []netip.Addr) {
	before, wants, asked := d.owned, d.wants(model.IPv4), map[Key]bool{}
	d.owned, d.owners = map[Key]owned{}, map[Key]model.PortName{}
	isSame := func(s *model.Service) bool { return d.versions[s.Name] == identity(s) }
	choose := func(k Key, list []want) {
		w := slices.MinFunc(list, func(a, b want) int {
			keeps := func(w want) bool { return before[k] == w.owned(k) && isSame(w.s) }
			stays := func(w want) bool { return before[k].port.Service == w.s.Name && isSame(w.s) }
			return cmp.Or(first(a.kind == ClusterIP, b.kind == ClusterIP), first(keeps(a), keeps(b)),
				first(stays(a), stays(b)),
				a.s.Created.Compare(b.s.Created), cmp.Compare(a.kind, b.kind), a.port.Compare(b.port))
		})
		d.owned[k] = w.owned(k)
		if len(list) > 1 {
			d.owners[k] = w.port
		}
	}
	for k, list := range wants {
		if k.IsNodePort() {
			choose(k, list)
		}
	}
	for k, list := range wants {
		if k.IsNodePort() {
			continue
		}
		np := k.nodePort()
		o, exists := d.owned[np]
		if slices.Contains(nodeAddrs, k.Addr) {
			asked[k] = true
			if exists && !slices.ContainsFunc(list, func(w want) bool { return w.port == o.port }) {
				list = append(list, want{o.port, NodePort, d.services[o.port.Service]})
			}
			if served, was := before[np]; was && slices.Contains(d.nodeAddrs, k.Addr) && !d.contested[k] {
				before[k] = owned{served.port, true}
			}
		}
		choose(k, list)
	}
	d.nodeAddrs, d.contested = nodeAddrs, asked
	clear(d.versions)
	for n, s := range d.services {
		d.versions[n] = identity(s)
	}
}

func (w want) owned(k Key) owned { return owned{w.port, w.kind == NodePort && !k.IsNodePort()} }

// identity tells a service from another one of its name.
func identity(s *model.Service) string { return fmt.Sprint(s.UID, s.Created) }

func ownersOf(m *mirror) map[Key]model.PortName {
	owners := map[Key]model.PortName{}
	for k, h := range m.others() {
		owners[k] = h.owner
	}
	return owners
}

// refusedIn lists the ports that a mirror has refused.
func (m *mirror) refusedIn(f model.Family) (list []string) {
	for name := range m.refused {
		list = append(list, fmt.Sprint(name, f))
	}
	return list
}

// compareAffinity compares which ports have affinity, of those that are not refused.
func (d *described) compareAffinity(t *testing.T, f model.Family, m *mirror) {
	_, sticky := d.decide(f)
	for name, p := range m.ports {
		if !m.isRefused(name) {
			assert.Equal(t, slices.Contains(sticky, fmt.Sprint(name, f)), p.AffinityTimeout > 0, "affinity of %v", name)
		}
	}
}

// compare compares the backend sets and hairpins of a mirror with what was described.
func (d *described) compare(t *testing.T, f model.Family, m *mirror) {
	d.compareAffinity(t, f, m)
	hairpins := map[string]bool{}
	for name, p := range m.ports {
		for i, set := range sets() {
			var want, have []string
			for k, ep := range d.endpoints {
				used := ep.Sets
				if k.Port != name || ep.Family() != f || ep.Target.Port() == 0 {
					continue
				}
				if set == Draining && used == 0 && ep.Serving || set != Draining && used.Has(set) {
					want = append(want, ep.Target.String())
				}
				if used != 0 && ep.Local {
					hairpins[ep.Target.Addr().String()] = true
				}
			}
			for _, ep := range p.sets[i] {
				have = append(have, ep.Target.String())
			}
			assert.ElementsMatch(t, want, have, "%v", name)
		}
	}
	for a := range hairpins {
		assert.Contains(t, slices.Collect(maps.Keys(m.hairpins)), a)
	}
}
