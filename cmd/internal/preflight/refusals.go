package preflight

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ofRefusals returns the differences in what this library does not serve of service ports. Kube-proxy has no limits.
func (m *move) ofRefusals() (list []difference) {
	if m.old.upstream {
		for _, r := range m.new.refused {
			if d, ok := m.ofRefusal(r); ok {
				list = append(list, d)
			}
		}
		return list
	}
	served := func(r refusal, p *proxy) {
		if slices.Contains(p.refused, r) {
			return
		}
		d := difference{Object: r.port.String(), Before: "served", After: r.text(), Rule: ruleOf(r.reason)}
		if p == m.new {
			d.Before, d.After = d.After, d.Before
		}
		list = append(list, d)
	}
	for _, r := range m.new.refused {
		served(r, m.old)
	}
	for _, r := range m.old.refused {
		served(r, m.new)
	}
	return list
}

// ruleOf returns the rule that refuses.
func ruleOf(r frontend.Reason) string {
	switch r {
	case frontend.AddressInUse:
		return "S59"
	case frontend.TooManyFrontends, frontend.TooManyDestinations:
		return "frontend.Limits"
	case frontend.TooManyEndpoints:
		return "S60"
	case frontend.TooManySourceRanges:
		return "S26"
	case frontend.TooManyStickyEndpoints:
		return "S32"
	}
	return "S4"
}

// text says what is not served.
func (r refusal) text() string {
	if r.reason == frontend.TooManyStickyEndpoints {
		return r.message
	}
	return "not everything is served: " + r.message
}

// ofRefusal returns what kube-proxy does with something that this library refuses, or false if it does the same.
func (m *move) ofRefusal(r refusal) (difference, bool) {
	d := difference{Object: r.port.String(), Before: "may be programmed as it is", After: r.text(),
		Rule: ruleOf(r.reason)}
	switch r.reason {
	case frontend.AddressInUse:
		d.Before = "this service or the other one is served there, at random"
		if !m.old.is(v1alpha2.ProxyModeIPVS) { // external addresses come before node ports
			switch loser, owner := m.port(r.port), m.port(r.owner); {
			case m.share(r.port, r.owner):
			case owner.Port != 0 && loser.NodePort == owner.Port:
				return d, false
			case loser.Port != 0 && owner.NodePort == loser.Port:
				d.Before = "it is served, before the node port"
			}
		}
	case frontend.TooManyFrontends:
		d.Before = "all its addresses and ports are served"
	case frontend.TooManyEndpoints:
		d.Before = "all its ports are served"
	case frontend.TooManyDestinations:
		d.Before = "all its endpoints are served at all its addresses"
	case frontend.TooManySourceRanges:
		d.Before = "it is served with all its source ranges"
	case frontend.TooManyStickyEndpoints:
		d.Before = "all its endpoints have session affinity"
	}
	return d, true
}

// port returns a service port, the zero value if it does not exist.
func (m *move) port(name model.PortName) model.ServicePort {
	if entry := m.new.snapshot.Service(name.Service); entry != nil {
		for _, p := range entry.Service.Ports {
			if entry.Service.PortName(p) == name {
				return p
			}
		}
	}
	return model.ServicePort{}
}

// share reports whether two service ports have the same node port, or an address with the same port.
func (m *move) share(a, b model.PortName) bool {
	p, q := m.port(a), m.port(b)
	if p.NodePort != 0 && p.NodePort == q.NodePort {
		return true
	}
	of := func(name model.PortName) []netip.Addr {
		if entry := m.new.snapshot.Service(name.Service); entry != nil {
			return slices.Concat(entry.Service.ClusterIPs, entry.Service.ExternalIPs, entry.Service.LoadBalancerIPs)
		}
		return nil
	}
	addresses := of(b)
	return p.Port == q.Port &&
		slices.ContainsFunc(of(a), func(x netip.Addr) bool { return slices.Contains(addresses, x) })
}
