package cases

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

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
			svc = tr.as.WithDefaults(0)
		} else if svc, err = st.serviceNamed(tr.of); err != nil {
			return nil, err
		}
		for _, f := range families {
			if !slices.Contains(svc.Families, f) || tr.only != 0 && tr.only != f {
				continue
			}
			for i, port := range svc.Ports {
				if tr.ports != nil && !slices.Contains(tr.ports, port.Name) ||
					!slices.Contains(protocols, port.Protocol) {
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
	fl := svc.Flow(network.HostNamed(from), to, port, f)
	switch {
	case tr.asVIP:
		fl.Source = svc.VIPAddr(f)
	case to == toLoopbackNodePort:
		fl.Source = fl.Destination.Addr()
	}
	return expectedFlow{fl, tr.want}
}

func (st step) serviceNamed(name string) (service, error) {
	for i, s := range st.services {
		if s = s.WithDefaults(i); name == "" || s.Name == name {
			return s, nil
		}
	}
	return service{}, fmt.Errorf("the state has no service %q", name)
}

// trafficCase is a case that needs only states and traffic.
type trafficCase struct {
	name  string // a sentence
	rules string // for example "S25, S27"
	needs []backend.Feature
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
func (c trafficCase) needing(features ...backend.Feature) trafficCase {
	c.needs = features
	return c
}

// in returns the case with a setup.
func (c trafficCase) in(s setup) trafficCase {
	c.setup = s
	return c
}

// trafficCases returns the cases that need only states and traffic.
func trafficCases() []trafficCase {
	return slices.Concat(endpointCases(), policyCases(), detectorCases(), addressCases(), changeCases())
}
