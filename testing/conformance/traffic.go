package conformance

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// destination is the kind of address that a client connects to.
type destination int

const (
	toClusterIP destination = iota
	toExternalIP
	toVIP
	toNodePort           // on the node's own address
	toOtherNodePort      // on another address of the node
	toLoopbackNodePort   // on 127.0.0.1, or ::1
	toUnknownPort        // a port of the cluster IP that the service does not have
	toUnallocatedAddress // an unused address of the service CIDR
	toEndpointItself     // the first endpoint of the port, not through the service
	toContestedAddress   // listed by several services
	toListedNode         // the node's address, as an external IP
)

func (d destination) String() string {
	return [...]string{"cluster IP", "external IP", "VIP", "node port", "node port on another address",
		"node port on localhost",
		"unknown port of the cluster IP", "unallocated address", "endpoint itself",
		"contested address", "node's address as an external IP"}[d]
}

var externalDestinations = []destination{toExternalIP, toVIP, toNodePort}

// resolve returns a destination's address in a family, for the port with that index in a service.
func (d destination) resolve(s service, port int, f model.Family) netip.AddrPort {
	number := s.ports[port].number
	switch d {
	case toExternalIP:
		return netip.AddrPortFrom(s.externalAddr(f), number)
	case toVIP:
		return netip.AddrPortFrom(s.vipAddr(f), number)
	case toNodePort:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], s.nodePortOf(port))
	case toOtherNodePort:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[1], s.nodePortOf(port))
	case toLoopbackNodePort:
		if f == model.IPv6 {
			return netip.AddrPortFrom(netip.IPv6Loopback(), s.nodePortOf(port))
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.nodePortOf(port))
	case toContestedAddress:
		return netip.AddrPortFrom(contestedAddr(f), number)
	case toListedNode:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], number)
	case toUnknownPort:
		return netip.AddrPortFrom(s.clusterIP(f), number+1)
	case toUnallocatedAddress:
		return netip.AddrPortFrom(network.Nth(network.ClusterIPs(f), 200), number)
	case toEndpointItself:
		e := s.ports[port].endpoints[0]
		return netip.AddrPortFrom(network.PlaceNamed(e.at).Addr(f), e.target)
	}
	return netip.AddrPortFrom(s.clusterIP(f), number)
}

// traffic is a case's new connections and their expected outcome: one flow for each source, destination, family, and
// port of the service.
type traffic struct {
	from []string
	to   []destination
	// of is the name of the service, default the first of the state.
	of string
	// as provides the addresses and ports for traffic to no service of the state; of is then unused.
	as *service
	// ports restricts the traffic to ports with these names.
	ports []string
	// only restricts it to one family.
	only model.Family
	// asVIP: the client has the service's VIP as its own address (S26).
	asVIP bool
	want  want
}

// want is the outcome that a case requires. The oracle decides as well; a test checks that they agree.
type want struct {
	verdict oracle.Verdict
	reach   []reached
	// strict: only this is right, even where backends have a choice.
	strict bool
	// anySource: the endpoint may see any source.
	anySource bool
	// orRefused: a refusal is right too.
	orRefused bool
}

// reached is an endpoint that traffic may reach, and will if there is enough traffic.
type reached struct {
	at          string
	target      uint16 // default serverPort
	masqueraded bool
}

var (
	refused   = want{verdict: oracle.Reject}
	dropped   = want{verdict: oracle.Drop}
	leftAlone = want{verdict: oracle.NotOurs}
)

// keeping delivers traffic to these places, which see the client's own address.
func keeping(places ...string) want { return spread(false, places) }

// masquerading delivers traffic to these places, which see an address of the node.
func masquerading(places ...string) want { return spread(true, places) }

func spread(masqueraded bool, places []string) want {
	w := want{verdict: oracle.Deliver}
	for _, p := range places {
		w.reach = append(w.reach, reached{at: p, target: serverPort, masqueraded: masqueraded})
	}
	return w
}

// and combines two wants about different endpoints.
func (w want) and(o want) want {
	w.reach = append(slices.Clone(w.reach), o.reach...)
	return w
}

// on changes the endpoints' port from serverPort.
func (w want) on(target uint16) want {
	w.reach = slices.Clone(w.reach)
	for i := range w.reach {
		w.reach[i].target = target
	}
	return w
}

// fromAnySource accepts any source that the endpoint sees.
func (w want) fromAnySource() want { w.anySource = true; return w }

// orElseRefused also accepts a refusal.
func (w want) orElseRefused() want { w.orRefused = true; return w }

// strictly rejects outcomes that backends may otherwise choose.
func (w want) strictly() want { w.strict = true; return w }

// step is a state and its traffic.
type step struct {
	// then describes the step, in messages too. It is empty if a case has only one step.
	then     string
	services []service
	traffic  []traffic
}

// expectedFlow is a flow and the outcome that the case requires.
type expectedFlow struct {
	network.Attempt
	want want
}

// flows expands the traffic of a step into flows.
func (st step) flows(families []model.Family, protocols []model.Protocol) ([]expectedFlow, error) {
	var flows []expectedFlow
	for _, tr := range st.traffic {
		var svc service
		var err error
		if tr.as != nil {
			svc = tr.as.withDefaults(0)
		} else if svc, err = st.serviceNamed(tr.of); err != nil {
			return nil, err
		}
		for _, f := range families {
			if !slices.Contains(svc.families, f) || tr.only != 0 && tr.only != f {
				continue
			}
			for i, port := range svc.ports {
				if tr.ports != nil && !slices.Contains(tr.ports, port.name) ||
					!slices.Contains(protocols, port.protocol) {
					continue
				}
				for _, from := range tr.from {
					for _, to := range tr.to {
						flows = append(flows, tr.flow(svc, i, from, to, f))
					}
				}
			}
		}
	}
	return flows, nil
}

func (tr traffic) flow(svc service, port int, from string, to destination, f model.Family) expectedFlow {
	fl := svc.flow(network.PlaceNamed(from), to, port, f)
	switch {
	case tr.asVIP:
		fl.Source = svc.vipAddr(f)
	case to == toLoopbackNodePort:
		fl.Source = fl.Destination.Addr()
	}
	return expectedFlow{fl, tr.want}
}

// flow returns the flow from a place to a destination in a family, for the port with that index in the service.
func (s service) flow(from network.Place, to destination, port int, f model.Family) network.Attempt {
	return from.FlowTo(to.resolve(s, port, f), s.ports[port].protocol, fmt.Sprintf("the %v of %s", to, s.name))
}

func (st step) serviceNamed(name string) (service, error) {
	for i, s := range st.services {
		if s = s.withDefaults(i); name == "" || s.name == name {
			return s, nil
		}
	}
	return service{}, fmt.Errorf("the state has no service %q", name)
}

// trafficCase is a case that needs only states and traffic.
type trafficCase struct {
	name  string // a sentence
	rules string // for example "S25, S27"
	needs []Feature
	setup setup
	// vipsOnNode adds the first service's VIPs to the node, like clouds that deliver packets unchanged.
	vipsOnNode bool
	steps      []step
}

// inState returns a case with one state.
func inState(name, rules string, services []service, flows ...traffic) trafficCase {
	return inTurn(name, rules, step{services: services, traffic: flows})
}

// inTurn returns a case with several successive states.
func inTurn(name, rules string, steps ...step) trafficCase {
	return trafficCase{name: name, rules: rules, steps: steps}
}

// needing adds required features to the case.
func (c trafficCase) needing(features ...Feature) trafficCase {
	c.needs = features
	return c
}

// in returns the case with a setup.
func (c trafficCase) in(s setup) trafficCase {
	c.setup = s
	return c
}
