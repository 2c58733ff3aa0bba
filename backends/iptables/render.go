package iptables

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// renderer makes the rules of a service port: what happens to the traffic of its frontends, and its own chains.
type renderer struct {
	*config
	from *frontend.Port
	port *port
	// users are how many rules lead to the endpoints of each of port.sets.
	users [2]int
}

func (r *renderer) isEmpty(rt model.Route) bool {
	return rt.Endpoints == 0 || r.from.Size(rt.Endpoints) == 0
}

// same tells whether the same happens to traffic of two routes.
func (r *renderer) same(a, b model.Route) bool {
	if r.isEmpty(a) || r.isEmpty(b) {
		return r.isEmpty(a) == r.isEmpty(b) && a.Empty == b.Empty
	}
	return a.Endpoints == b.Endpoints && a.Masquerade == b.Masquerade
}

func (r *renderer) simple(k frontend.SourceRoutes) bool {
	return r.same(k.FromPod, k.Other) && r.same(k.FromNode, k.Other)
}

// What the chains of a service port are for.
const (
	chainCluster    = "CLUSTER" // to the cluster set
	chainLocal      = "LOCAL"   // to the local set
	chainExternal   = "EXT"     // to a set that depends on where the traffic comes from
	chainRestricted = "ALLOW"   // only what source ranges let pass
	chainRefuse     = "EMPTY"   // filter: refuse what has no endpoints
	chainDeny       = "DENY"    // filter: drop what source ranges do not let pass
)

func chainName(purpose string, p model.PortName) string {
	return chainPrefix + purpose + "-" + portHash(p)
}

func (r *renderer) chainName(purpose string) string { return chainName(purpose, r.port.name) }

func (r *renderer) add(filter bool, purpose string, rules []string) string {
	name := r.chainName(purpose)
	if !r.port.has(name) {
		r.port.chains = append(r.port.chains, ownChain{filter, name, rules})
	}
	return name
}

// render returns a service port as it is to be, which has so many frontends of each class.
func (c *config) render(change *frontend.PortChange, frontends [numClasses]int) *port {
	from := change.After
	r := &renderer{config: c, from: from, port: &port{name: from.Name, frontends: frontends}}
	p := r.port
	for i, n := range frontends {
		if n > 0 {
			r.renderNAT(class(i), n)
			r.renderRefusal(class(i))
		}
	}
	// A set that only one frontend leads to, and directly, needs no chain of its own. Node ports have one all the same:
	// with a group below them the names of their chains would be too long.
	for i, users := range r.users {
		if users == 0 {
			continue
		}
		set := setOf(i)
		if users == 1 && from.AffinityTimeout == 0 && from.Size(set) <= maxInline {
			rule := "-g " + setChain(p.name, set)
			at := slices.IndexFunc(p.traffic[:nodePorts], func(t traffic) bool { return t.to.rule == rule })
			if at >= 0 {
				p.traffic[at].to = target{endpoints: targetsOf(change.Endpoints(set))}
				continue
			}
		}
		p.sets[i] = newOwnSet(from, set)
	}
	return p
}

// toSet returns the rule that leads to the endpoints of a route, for so many users.
func (r *renderer) toSet(rt model.Route, users int) string {
	r.users[setIndex(rt.Endpoints)] += users
	return "-g " + setChain(r.port.name, rt.Endpoints)
}

// renderNAT says what table nat does for the frontends of a class.
func (r *renderer) renderNAT(c class, frontends int) {
	k, t := r.from.RoutesOf(c.kind()), &r.port.traffic[c]
	if r.isEmpty(k.FromPod) && r.isEmpty(k.FromNode) && r.isEmpty(k.Other) {
		return
	}
	m := masqOf(k.Other.Masquerade)
	rule := ""
	if r.simple(k) && (c != nodePorts || m != masqUnlessPod) {
		t.masquerade = m
		rule = r.toSet(k.Other, frontends)
	} else {
		rule = "-g " + r.external(k)
	}
	if c == restricted {
		var rules []string
		for i, p := range r.from.SourceRanges {
			match := "-s " + prefixText(p)
			if p.Bits() == 0 {
				match = "-p " + protocolText(r.port.name.Protocol)
			}
			if i == 0 {
				match += comment(portComment(r.port.name))
			}
			rules = append(rules, match+" "+rule)
		}
		rule = "-g " + r.add(false, chainRestricted, rules)
	}
	t.to.rule = rule
}

// external returns the chain that tells traffic apart by where it comes from (S27).
func (r *renderer) external(k frontend.SourceRoutes) string {
	if name := r.chainName(chainExternal); r.port.has(name) {
		return name
	}
	var rules []string
	lead := func(match string, rt model.Route) {
		if match != "" {
			match += " "
		}
		if r.isEmpty(rt) {
			rules = append(rules, match+"-j RETURN")
			return
		}
		if rt.Masquerade != model.MasqueradeNever {
			rules = append(rules, match+markText(r.mark, true))
		}
		rules = append(rules, match+r.toSet(rt, 1))
	}
	if !r.same(k.FromPod, k.Other) || !r.same(k.FromPod, k.FromNode) || k.Other.Masquerade == model.MasqueradeUnlessLocalPod {
		for _, isLocalPod := range r.isLocalPod() {
			rt := k.FromPod
			if rt.Masquerade == model.MasqueradeUnlessLocalPod {
				rt.Masquerade = model.MasqueradeNever
			}
			lead(isLocalPod, rt)
		}
	}
	if !r.same(k.FromNode, k.Other) {
		lead("-m addrtype --src-type LOCAL", k.FromNode)
	}
	lead("", k.Other)
	rules[0] = insertComment(rules[0], portComment(r.port.name))
	return r.add(false, chainExternal, rules)
}

// renderRefusal says what table filter does for the frontends of a class: to packets that table nat has sent to no
// endpoint.
func (r *renderer) renderRefusal(c class) {
	k, t := r.from.RoutesOf(c.kind()), &r.port.traffic[c]
	none := !r.isEmpty(k.FromPod) && !r.isEmpty(k.FromNode) && !r.isEmpty(k.Other)
	all := r.isEmpty(k.FromPod) && r.isEmpty(k.FromNode) && r.isEmpty(k.Other)
	var rule string
	switch {
	case none && c != restricted:
		return
	case none:
		t.refuse.rule = dropText
		return
	case all && r.simple(k):
		rule = r.verdict(k.Other)
	default:
		rule = "-g " + r.refusal(k)
	}
	if c == restricted {
		rules := make([]string, 0, len(r.from.SourceRanges)+1)
		for _, p := range r.from.SourceRanges {
			match := "-s " + prefixText(p) + " "
			if p.Bits() == 0 {
				match = ""
			}
			rules = append(rules, match+rule)
		}
		rules = append(rules, dropText)
		rules[0] = insertComment(rules[0], portComment(r.port.name))
		rule = "-g " + r.add(true, chainDeny, rules)
	}
	t.refuse.rule = rule
}

// refusal returns the chain that refuses traffic depending on where it comes from.
func (r *renderer) refusal(k frontend.SourceRoutes) string {
	var rules []string
	refuse := func(match string, rt model.Route) {
		if match != "" {
			match += " "
		}
		if r.isEmpty(rt) {
			rules = append(rules, match+r.verdict(rt))
		} else {
			rules = append(rules, match+"-j RETURN")
		}
	}
	for _, isLocalPod := range r.isLocalPod() {
		refuse(isLocalPod, k.FromPod)
	}
	refuse("-m addrtype --src-type LOCAL", k.FromNode)
	refuse("", k.Other)
	rules[0] = insertComment(rules[0], portComment(r.port.name))
	return r.add(true, chainRefuse, rules)
}

const dropText = "-j DROP"

func (r *renderer) verdict(rt model.Route) string {
	if rt.Empty == model.Drop {
		return dropText
	}
	if r.family == model.IPv6 {
		return "-j REJECT --reject-with icmp6-port-unreachable"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}
