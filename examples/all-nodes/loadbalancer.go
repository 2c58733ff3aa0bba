package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// balancers are a service's rows in the database: for a group of nodes, or for one node in place of its group's.
type balancers struct {
	rows []loadBalancer
	// check is the health check that a node answers for external load balancers; nil: none.
	check *model.HealthCheck
}

// loadBalancer has rules that share their options, like a row of OVN's table Load_Balancer.
type loadBalancer struct {
	options
	rules []rule
}

// options are the options of a load balancer, with OVN's names in brackets.
type options struct {
	at       place
	protocol model.Protocol
	affinity time.Duration // by the client's address [affinity_timeout]; 0: none
	reject   bool          // a rule without backends refuses connections, instead of dropping them [reject]
	skipSNAT bool          // backends see the client's address [skip_snat]
	// template is "ipv4" or "ipv6" if the addresses of the rules are variables of the node, all of this family [template,
	// address-family]. OVN has no affinity in templates.
	template string
}

// place is where a load balancer applies: in OVN, on the switches of pods, on the gateway routers, or on both.
type place string

const (
	everywhere place = "everywhere"
	switches   place = "on switches"
	routers    place = "on routers"
)

// rule maps connections to one address and port to backends.
type rule struct {
	vip      string // "10.96.0.1:80"; of a template "^NODE_IPv4_0:30080", also for IPv6
	backends []backend
}

// backend is an endpoint, with its pod for the database's own health checks [ip_port_mappings].
type backend struct {
	target netip.AddrPort
	pod    string // "" if it is not known
}

// balance returns a service's load balancers: for all nodes of a class if node is nil, otherwise for that node, which
// has the part. svc is the service as it is there. addresses is how many addresses the nodes have in each family, for
// node ports. Node ports with affinity are not in templates, so each node has them on its own: see stickyNodePorts.
// Source ranges are not load balancers: see [model.Service.SourceRanges].
func balance(entry *sink.ServiceEntry, svc *model.Service, node *model.Node, part *localstate.NodePart,
	class localstate.Class, addresses model.PerFamily[int]) *balancers {
	b := &balancers{check: svc.HealthCheck}
	for _, port := range svc.Ports {
		all := combine(entry, svc.PortName(port), part, class)
		add := func(f model.Family, vip, template string, onSwitch, onRouter model.Route) {
			opts := options{protocol: port.Protocol, affinity: svc.SessionAffinityTimeout, template: template}
			b.add(opts, vip, endpointsOf(all, f), onSwitch, onRouter)
		}
		addAddr := func(ip netip.Addr, number uint16, onSwitch, onRouter model.Route) {
			add(model.FamilyOf(ip), netip.AddrPortFrom(ip, number).String(), "", onSwitch, onRouter)
		}
		for _, ip := range svc.ClusterIPs {
			route := port.Routes.At(model.FamilyOf(ip)).ClusterIP
			addAddr(ip, port.Port, route, route)
		}
		for _, ip := range slices.Concat(svc.ExternalIPs, svc.LoadBalancerIPs) {
			routes := port.Routes.At(model.FamilyOf(ip))
			addAddr(ip, port.Port, routes.ExternalFromPod, routes.External)
		}
		for _, f := range model.Families() {
			routes := port.Routes.At(f)
			switch {
			case port.NodePort == 0 || !svc.ClusterIP(f).IsValid():
			case !stickyNodePorts(svc):
				for i := range *addresses.At(f) {
					add(f, fmt.Sprintf("^%s:%d", variable(f, i), port.NodePort), strings.ToLower(f.String()),
						routes.ExternalFromPod, routes.External)
				}
			case node != nil:
				for _, ip := range node.IPs {
					if model.FamilyOf(ip) == f {
						addAddr(ip, port.NodePort, routes.ExternalFromPod, routes.External)
					}
				}
			}
		}
	}
	return b
}

// stickyNodePorts reports whether a service has node ports with affinity.
func stickyNodePorts(svc *model.Service) bool {
	return svc.SessionAffinityTimeout > 0 &&
		slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 })
}

// variable is the name of a node's i-th address in a family.
func variable(f model.Family, i int) string { return fmt.Sprintf("NODE_%v_%d", f, i) }

// variables are the addresses of a node by their names, those of IPv6 without brackets.
func variables(node *model.Node) map[string]string {
	vars := map[string]string{}
	var n model.PerFamily[int]
	for _, ip := range node.IPs {
		f := model.FamilyOf(ip)
		vars[variable(f, *n.At(f))] = ip.String()
		*n.At(f)++
	}
	return vars
}

// add adds the rules for an address and port, by one route for switches and another one for routers.
func (b *balancers) add(opts options, vip string, endpoints []*model.Endpoint, onSwitch, onRouter model.Route) {
	put := func(at place, route model.Route) {
		opts.at = at
		opts.reject, opts.skipSNAT = route.Empty == model.Reject, route.Masquerade == model.MasqueradeNever
		r := rule{vip: vip}
		for _, e := range endpoints {
			if e.Sets.Has(route.Endpoints) {
				r.backends = append(r.backends, backend{e.Target, podOf(e)})
			}
		}
		i := slices.IndexFunc(b.rows, func(row loadBalancer) bool { return row.options == opts })
		if i < 0 {
			i, b.rows = len(b.rows), append(b.rows, loadBalancer{options: opts})
		}
		b.rows[i].rules = append(b.rows[i].rules, r)
	}
	if onSwitch == onRouter {
		put(everywhere, onSwitch)
		return
	}
	put(switches, onSwitch)
	put(routers, onRouter)
}

func podOf(e *model.Endpoint) string {
	if ref := e.Details.Get().TargetRef; ref.Kind == "Pod" {
		return ref.Namespace + "/" + ref.Name
	}
	return ""
}

func endpointsOf(all []*model.Endpoint, f model.Family) []*model.Endpoint {
	return slices.DeleteFunc(slices.Clone(all), func(e *model.Endpoint) bool { return e.Family() != f })
}

// String returns a line for the options of each load balancer, followed by a line for each of its rules.
func (b *balancers) String() string {
	if b == nil {
		return ""
	}
	var text strings.Builder
	for _, row := range b.rows {
		fmt.Fprintf(&text, "\n  %v, %s", row.protocol, row.at)
		if row.affinity > 0 {
			fmt.Fprintf(&text, ", affinity %v", row.affinity)
		}
		for _, option := range []struct {
			name string
			set  bool
		}{{"reject", row.reject}, {"skip_snat", row.skipSNAT}, {"template " + row.template, row.template != ""}} {
			if option.set {
				text.WriteString(", " + option.name)
			}
		}
		for _, r := range row.rules {
			fmt.Fprintf(&text, "\n    %s ->", r.vip)
			for _, backend := range r.backends {
				text.WriteString(" " + backend.target.String())
				if backend.pod != "" {
					text.WriteString(" (" + backend.pod + ")")
				}
			}
			if len(r.backends) == 0 {
				text.WriteString(" none")
			}
		}
	}
	if b.check != nil {
		local := b.check.LocalEndpoints
		fmt.Fprintf(&text, "\n  health check at port %d: endpoints here: %d IPv4, %d IPv6", b.check.NodePort, local.IPv4,
			local.IPv6)
	}
	return text.String()
}
