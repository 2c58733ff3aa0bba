package preflight

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ofRefusals returns the differences due to parts of service ports that this library does not serve. Kube-proxy has no
// such limits.
func (m *move) ofRefusals() (list []difference) {
	if m.old.upstream {
		for _, r := range m.new.refused {
			if d, ok := m.ofRefusal(r); ok {
				list = append(list, d)
			}
		}
		return list
	}
	for _, r := range without(m.new.refused, m.old.refused) {
		list = append(list, r.difference("served"))
	}
	for _, r := range without(m.old.refused, m.new.refused) {
		d := r.difference("served")
		d.Before, d.After = d.After, d.Before
		list = append(list, d)
	}
	return list
}

// without returns what is in a list and not in another one.
func without(list, other []refusal) []refusal {
	in := map[refusal]struct{}{}
	for _, r := range other {
		in[r] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(list), func(r refusal) bool {
		_, is := in[r]
		return is
	})
}

// refusals has the rule for each reason for a refusal, and what kube-proxy does instead.
func refusals() map[frontend.Reason]struct{ rule, before string } {
	return map[frontend.Reason]struct{ rule, before string }{
		frontend.AddressInUse:           {"S59", "this service or the other one is served there, at random"},
		frontend.TooManyFrontends:       {"frontend.Limits", "all its addresses and ports are served"},
		frontend.TooManyDestinations:    {"frontend.Limits", "all its endpoints are served at all its addresses"},
		frontend.TooManyEndpoints:       {"S60", "all its ports are served"},
		frontend.TooManySourceRanges:    {"S26", "it is served with all its source ranges"},
		frontend.TooManyStickyEndpoints: {"S32", "all its endpoints have session affinity"},
		frontend.TooManyStickyPorts:     {"S32", "all its ports have session affinity"},
	}
}

// difference returns the refusal as a difference. before is what kube-proxy does instead, if not what refusals says.
func (r refusal) difference(before string) difference {
	is := refusals()[r.reason]
	return difference{Object: r.port.String(), Before: cmp.Or(before, is.before, "may be programmed as it is"),
		After: r.text(), Rule: cmp.Or(is.rule, "S4"), service: r.port.Service}
}

// text says what is not served.
func (r refusal) text() string {
	if r.reason == frontend.TooManyStickyEndpoints || r.reason == frontend.TooManyStickyPorts {
		return r.message
	}
	return "not everything is served: " + r.message
}

// ofRefusal returns what kube-proxy does with something that this library refuses, or false if it does the same.
func (m *move) ofRefusal(r refusal) (difference, bool) {
	before := ""
	if r.reason == frontend.AddressInUse && !m.old.is(v1alpha2.ProxyModeIPVS) {
		// External addresses come before node ports.
		switch loser, owner := m.new.port(r.port), m.new.port(r.owner); {
		case m.share(r.port, r.owner):
		case owner.Port != 0 && loser.NodePort == owner.Port:
			return difference{}, false
		case loser.Port != 0 && owner.NodePort == loser.Port:
			before = "it is served, before the node port"
		}
	}
	return r.difference(before), true
}

// share reports whether two service ports have the same node port, or an address with the same port.
func (m *move) share(a, b model.PortName) bool {
	p, q := m.new.port(a), m.new.port(b)
	if p.NodePort != 0 && p.NodePort == q.NodePort {
		return true
	}
	of := func(name model.PortName) []netip.Addr {
		s := m.new.service(name)
		return slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs)
	}
	addresses := of(b)
	return p.Port == q.Port &&
		slices.ContainsFunc(of(a), func(x netip.Addr) bool { return slices.Contains(addresses, x) })
}
