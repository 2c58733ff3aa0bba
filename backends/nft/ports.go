package nft

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"
	"time"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// port is a service port in one family, as it is to be or as it is in force.
type port struct {
	name     model.PortName
	routes   model.Routes
	affinity string // the name of its own chains, "" without session affinity
	timeout  time.Duration
	fronts   []front
	// cluster and local hold the endpoints of the two sets, as far as routes use them: sorted at first, then in their slots.
	cluster, local []netip.AddrPort
	hairpins       []netip.Addr // endpoints that may reach themselves with their own address, sorted
	ranges         []addrRange  // sources that may use fronts with restricted set
	clusterIP      netip.Addr
}

// front is a key that traffic to a service port comes by: an address and port, or a node port.
type front struct {
	key        string // in service-ips or nodeports
	nodePort   bool
	clusterIP  bool // or else external
	restricted bool
	rank       uint8 // who has it if several claim it: the lowest
	// lost: another service port has it.
	lost bool
}

// addrRange is a range of addresses, both included.
type addrRange struct{ first, last netip.Addr }

// newPorts returns the ports of a service in one family. Those that nothing leads to are left out, so that bad input ends
// here: bad says what was wrong with it.
func (c *config) newPorts(e *sink.ServiceEntry, bad func(problem string, port model.PortName)) []*port {
	if e == nil {
		return nil
	}
	ports := make([]*port, 0, len(e.Service.Ports))
	for _, sp := range e.Service.Ports {
		p := &port{name: e.Service.PortName(sp), routes: sp.Routes(c.family)}
		sets := p.routes.Sets()
		if sets == 0 {
			continue
		}
		if sp.Port == 0 || sp.Protocol == 0 {
			bad("it has no port number or protocol", p.name)
			continue
		}
		if slices.ContainsFunc(ports, func(o *port) bool { return o.name == p.name }) {
			bad("the service has two ports of that name", p.name)
			continue
		}
		p.addFronts(c.family, e.Service, sp)
		p.addEndpoints(c, e, sets, bad)
		if e.Service.SessionAffinityTimeout > 0 {
			p.timeout = max(e.Service.SessionAffinityTimeout, time.Second)
			p.affinity = affinityName(p.name)
		}
		ports = append(ports, p)
	}
	return ports
}

// Ranks of fronts: a cluster IP is nobody else's.
const (
	rankClusterIP = iota
	rankVIP
	rankExternalIP
)

func (p *port) addFronts(f model.Family, s *model.Service, sp model.ServicePort) {
	key := func(a netip.Addr) string {
		b := dp.AppendAddr(make([]byte, 0, 24), a)
		return string(dp.AppendPort(dp.AppendProtocol(b, sp.Protocol), sp.Port))
	}
	add := func(fr front) {
		if !slices.ContainsFunc(p.fronts, func(o front) bool { return o.key == fr.key && o.nodePort == fr.nodePort }) {
			p.fronts = append(p.fronts, fr)
		}
	}
	if a := s.ClusterIP(f); a.IsValid() && p.routes.ClusterIP.Endpoints != 0 {
		p.clusterIP = a
		add(front{key: key(a), clusterIP: true, rank: rankClusterIP})
	}
	if p.routes.External.Endpoints == 0 {
		return
	}
	// An address that is a VIP as well as an external IP is a VIP: what is closed to some must not be open elsewhere.
	ranges := s.SourceRanges(f)
	for _, a := range s.LoadBalancerIPs {
		if model.FamilyOf(a) == f {
			add(front{key: key(a), rank: rankVIP, restricted: len(ranges) > 0})
			p.ranges = mergeRanges(ranges)
		}
	}
	for _, a := range s.ExternalIPs {
		if model.FamilyOf(a) == f {
			add(front{key: key(a), rank: rankExternalIP})
		}
	}
	if sp.NodePort != 0 {
		k := dp.AppendPort(dp.AppendProtocol(make([]byte, 0, 8), sp.Protocol), sp.NodePort)
		add(front{key: string(k), nodePort: true})
	}
}

func (p *port) addEndpoints(c *config, e *sink.ServiceEntry, sets model.EndpointSets, bad func(string, model.PortName)) {
	endpoints := e.PortEndpoints(p.name.Port, p.name.Protocol)
	if sets.Has(model.ClusterSet) {
		p.cluster = make([]netip.AddrPort, 0, len(endpoints))
	}
	for _, ep := range endpoints {
		used := ep.Sets & sets
		if used == 0 || ep.Family() != c.family {
			continue
		}
		if ep.Target.Port() == 0 {
			bad("its endpoint "+ep.Target.Addr().String()+" has no port number", p.name)
			continue
		}
		if used.Has(model.ClusterSet) {
			p.cluster = append(p.cluster, ep.Target)
		}
		if used.Has(model.LocalSet) {
			p.local = append(p.local, ep.Target)
		}
		// Endpoints are sorted: those of the same address are next to each other.
		if a, n := ep.Target.Addr(), len(p.hairpins); (n == 0 || p.hairpins[n-1] != a) && p.reachesItself(c, ep, used) {
			p.hairpins = append(p.hairpins, a)
		}
	}
}

// reachesItself tells whether a connection from an endpoint to itself might keep its source address but for S29. Those of
// this node always count; others only where a route takes them, so that the set of them stays small.
func (p *port) reachesItself(c *config, ep *model.Endpoint, used model.EndpointSets) bool {
	if ep.Local {
		return true
	}
	asPod := c.mayPassForLocalPod(ep.Target.Addr())
	keeps := func(r model.Route, isSource bool) bool {
		if !used.Has(r.Endpoints) || !isSource {
			return false
		}
		return r.Masquerade == model.MasqueradeNever || r.Masquerade == model.MasqueradeUnlessLocalPod && asPod
	}
	return keeps(p.routes.ClusterIP, true) || keeps(p.routes.External, true) || keeps(p.routes.ExternalFromPod, asPod)
}

// affinityName returns a name for the chains of a service port: readable, bounded, and its alone.
func affinityName(n model.PortName) string {
	text := n.Service.Namespace + "/" + n.Service.Name + "/" + strings.ToLower(n.Protocol.String())
	if n.Port != "" {
		text += "/" + n.Port
	}
	sum := sha256.Sum256([]byte(n.Service.Namespace + "\x00" + n.Service.Name + "\x00" + n.Port + "\x00" + n.Protocol.String()))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	return "affinity-" + hash + "-" + identifier(text, 40)
}

// identifier makes text fit to be a part of a name that nft can read: letters, digits, '/', '-', '_' and '.'.
func identifier(text string, limit int) string {
	b := []byte(text[:min(len(text), limit)])
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '/', c == '-', c == '_', c == '.':
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

// mergeRanges returns what prefixes cover as ranges that neither overlap nor touch, sorted.
func mergeRanges(prefixes []netip.Prefix) []addrRange {
	ranges := make([]addrRange, 0, len(prefixes))
	for _, p := range prefixes {
		ranges = append(ranges, addrRange{p.Masked().Addr(), lastAddr(p)})
	}
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 && (!merged[n-1].last.Less(r.first) || merged[n-1].last.Next() == r.first) {
			if merged[n-1].last.Less(r.last) {
				merged[n-1].last = r.last
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// dispatchOf says what happens to traffic that comes by a front.
func (p *port) dispatchOf(fr *front) dispatch {
	to := func(r model.Route) destination {
		return newDestination(r, len(p.slots(r.Endpoints)), fr.nodePort, p.affinity)
	}
	if fr.clusterIP {
		d := to(p.routes.ClusterIP)
		return dispatch{fromPod: d, fromNode: d, other: d}
	}
	return dispatch{fromPod: to(p.routes.ExternalFromPod), fromNode: to(p.routes.ExternalFromNode), other: to(p.routes.External),
		restricted: fr.restricted}
}

// slots returns the endpoints of a set.
func (p *port) slots(set model.EndpointSets) []netip.AddrPort {
	switch set {
	case model.ClusterSet:
		return p.cluster
	case model.LocalSet:
		return p.local
	}
	return nil
}

// frontSets returns the sets of endpoints that traffic by a front is balanced over, by random numbers.
func (p *port) frontSets(fr *front) model.EndpointSets {
	switch {
	case p.affinity != "" || fr.lost:
		return 0
	case fr.clusterIP:
		return p.routes.ClusterIP.Endpoints
	}
	return p.routes.External.Endpoints | p.routes.ExternalFromPod.Endpoints | p.routes.ExternalFromNode.Endpoints
}

// comment names the port in listings.
func (p *port) comment() string { return dp.Escape(p.name.String(), 120) }
