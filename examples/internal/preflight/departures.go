package preflight

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// departures lists what the oracle does not know: what kube-proxy itself does in another way (docs/departures.md), and
// what its modes do.
type departures struct {
	*move
	old, new *proxy
}

// ofObjects returns what is about objects, not about connections.
func (d *departures) ofObjects() []difference {
	if !d.kubeProxy {
		return nil
	}
	return append(slices.Clone(d.new.refused), d.ofSlices()...)
}

// correct changes what the oracle says of the old proxy where kube-proxy's does something else.
func (d *departures) correct(e *difference, before oracle.Outcome, to netip.AddrPort, protocol model.Protocol) {
	switch {
	case !d.kubeProxy:
	case d.old.isIPVS() && before.Verdict == oracle.Drop && before.Route.Endpoints == model.LocalSet:
		e.Before, e.Rule = "delivered to endpoints of other nodes", "S58"
	case d.old.packets.LoopbackProxy && to.Addr().IsLoopback() && protocol != model.TCP:
		e.Before, e.Rule = "rejected", "S36a"
	}
}

func (p *proxy) isIPVS() bool { return p.config.Mode == v1alpha2.ProxyModeIPVS }

// hasCIDR reports whether ranges of a family serve node ports.
func (p *proxy) hasCIDR(f model.Family) bool {
	return slices.ContainsFunc(p.choice.CIDRs, func(c netip.Prefix) bool { return model.FamilyOf(c.Addr()) == f })
}

// ofService returns what is different for a service whatever connection one makes to its ports.
func (d *departures) ofService(s *model.Service) (list []difference) {
	add := func(before, after, rule string) {
		list = append(list, difference{Object: s.Name.String(), Before: before, After: after, Rule: rule})
	}
	node, fromIPVS, toIPVS := d.new.snapshot.Node(), d.old.isIPVS(), d.new.isIPVS()
	for _, f := range model.Families() {
		if external := addresses(s, f); len(external) > 0 && fromIPVS != toIPVS {
			before, after := "connections to other ports of "+external+" are refused", "they are not served"
			if fromIPVS && d.kubeProxy {
				before = "connections to other ports of " + external + " reach the node's own programs"
			} else if toIPVS {
				before, after = "connections to other ports of "+external+" are not served", "they are refused"
			}
			add(before, after, "S33")
		} else if len(external) > 0 && fromIPVS && d.kubeProxy {
			add("connections to other ports of "+external+" reach the node's own programs", "they are refused", "S33")
		}
		if d.kubeProxy && d.old.choice.Primary && !node.IP(f).IsValid() && !d.old.hasCIDR(f) && s.ClusterIP(f).IsValid() &&
			slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 }) {
			add(fmt.Sprintf("its node ports are on all %v addresses, because the node has no primary one", f),
				"they are on none", "S35")
		}
	}
	if d.kubeProxy && s.HealthCheck != nil && node.IP(model.IPv4).IsValid() && node.IP(model.IPv6).IsValid() &&
		s.ClusterIP(model.IPv4).IsValid() != s.ClusterIP(model.IPv6).IsValid() {
		add(fmt.Sprintf("its health check answers in the service's family alone, on port %d", s.HealthCheck.NodePort),
			"it answers in both families", "S38")
	}
	hashes := func(p *proxy, upstream bool) bool { return p.isIPVS() && !upstream }
	if s.SessionAffinityTimeout != 0 && hasLocalExternal(s) && hashes(d.old, d.kubeProxy) != hashes(d.new, false) {
		texts := [2]string{fmt.Sprintf("the node and its pods stay with an endpoint of its external addresses for %v",
			s.SessionAffinityTimeout), "they stay with what a hash of their address says, without a timeout"}
		if hashes(d.old, d.kubeProxy) {
			texts[0], texts[1] = texts[1], texts[0]
		}
		add(texts[0], texts[1], "S32")
	}
	return list
}

// hasLocalExternal reports whether the external addresses of a service are served by this node's endpoints alone.
func hasLocalExternal(s *model.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool {
		return slices.ContainsFunc(model.Families(), func(f model.Family) bool {
			return p.Routes(f).External.Endpoints == model.LocalSet
		})
	}) && (len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0)
}

// addresses returns the external IPs and load-balancer IPs of a family in words, or "".
func addresses(s *model.Service, f model.Family) string {
	var list []string
	for _, a := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
		if model.FamilyOf(a) == f {
			list = append(list, a.String())
		}
	}
	if len(list) > 3 {
		list = append(list[:2], fmt.Sprintf("%d more", len(list)-2))
	}
	return strings.Join(list, ", ")
}

// ofProblem returns the difference that a problem of the table of addresses is about.
func ofProblem(p frontend.Problem) difference {
	e := difference{Object: p.Port.String(), Before: "may be programmed as it is",
		After: "not everything is served: " + p.Message, Rule: "S4"}
	switch p.Reason {
	case frontend.AddressInUse:
		e.Before, e.Rule = "whoever came last is served", "S59"
	case frontend.TooManyFrontends:
		e.Before, e.Rule = "all its addresses and ports are served", "frontend.Limits"
	case frontend.TooManyDestinations:
		e.Before, e.Rule = "all its endpoints are served at all its addresses", "frontend.Limits"
	case frontend.TooManySourceRanges:
		e.Before, e.Rule = "it is served with all its source ranges", "S26"
	}
	return e
}

// ofSlices returns what kube-proxy makes of EndpointSlices in another way, and what it leaves to chance.
func (d *departures) ofSlices() (list []difference) {
	type place struct{ service, address string }
	seen := map[place]discoveryv1.Endpoint{}
	told := map[place]bool{}
	for _, c := range d.objects {
		slice, ok := c.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		service := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		emptyHint := false
		for _, e := range slice.Endpoints {
			emptyHint = emptyHint || e.Hints != nil && slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{})
			for _, a := range e.Addresses[:min(1, len(e.Addresses))] {
				at := place{service, a}
				before, again := seen[at]
				if seen[at] = e; !again || told[at] || sameConditions(before, e) {
					continue
				}
				told[at] = true
				list = append(list, difference{Object: service, Before: "endpoint " + a + " is in two slices with different " +
					"conditions, and either may count", After: "the one counts that is not terminating, then the ready one",
					Rule: "S17"})
			}
		}
		if emptyHint {
			list = append(list, difference{Object: "EndpointSlice " + slice.Namespace + "/" + slice.Name,
				Before: "a zone hint without a name counts", After: "it is ignored", Rule: "S22"})
		}
	}
	return list
}

// sameConditions reports whether two entries of one address are as good as each other.
func sameConditions(a, b discoveryv1.Endpoint) bool {
	is := func(b *bool, otherwise bool) bool { return b == nil && otherwise || b != nil && *b }
	x, y := a.Conditions, b.Conditions
	return is(x.Ready, true) == is(y.Ready, true) && is(x.Terminating, false) == is(y.Terminating, false) &&
		is(x.Serving, true) == is(y.Serving, true)
}

// ofLog returns the difference that a log line of package localstate is about, if any.
func ofLog(line string) []difference {
	var said struct {
		Msg, Field, Reason                        string
		Service, EndpointSlice, Node, ServiceCIDR json.RawMessage
	}
	if json.Unmarshal([]byte(line), &said) != nil {
		return nil
	}
	kind, ok := strings.CutPrefix(said.Msg, "Ignoring an invalid value of ")
	if !ok {
		return nil
	}
	kind = kind[strings.LastIndex(kind, " ")+1:]
	var name struct{ Namespace, Name string }
	_ = json.Unmarshal(map[string]json.RawMessage{"Service": said.Service, "EndpointSlice": said.EndpointSlice,
		"Node": said.Node, "ServiceCIDR": said.ServiceCIDR}[kind], &name)
	return []difference{{Object: kind + " " + strings.TrimPrefix(name.Namespace+"/"+name.Name, "/"),
		Before: "may be used as it is", After: "ignored: " + said.Field + ": " + said.Reason, Rule: "S3 to S5"}}
}
