package iptables

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// renderer makes the rules of a service port: what its fronts lead to, and its own chains.
type renderer struct {
	*config
	port  *port
	users [2]int // how many rules lead to the endpoints of the cluster set and of the local set
}

// kinds are the routes of the traffic of one front: from this node's pods, from the node itself, from elsewhere.
type kinds struct{ pod, node, other model.Route }

func (r *renderer) kinds(fr *front) (k kinds) {
	k.pod, k.node, k.other = r.port.RoutesTo(fr.kind)
	return k
}

func (r *renderer) isEmpty(rt model.Route) bool { return len(r.port.Endpoints(rt.Endpoints)) == 0 }

// same tells whether the same happens to traffic of two routes.
func (r *renderer) same(a, b model.Route) bool {
	if r.isEmpty(a) || r.isEmpty(b) {
		return r.isEmpty(a) == r.isEmpty(b) && a.Empty == b.Empty
	}
	return a.Endpoints == b.Endpoints && a.Masquerade == b.Masquerade
}

func (r *renderer) simple(k kinds) bool { return r.same(k.pod, k.other) && r.same(k.node, k.other) }

// Names of the chains of a service port, and what they are for.
func (r *renderer) chainName(purpose string) string {
	return chainPrefix + purpose + "-" + portHash(r.port.Name)
}

const (
	chainCluster    = "CLUSTER" // to the cluster set
	chainLocal      = "LOCAL"   // to the local set
	chainExternal   = "EXT"     // to a set that depends on where the traffic comes from
	chainRestricted = "ALLOW"   // only what source ranges let pass
	chainRefuse     = "EMPTY"   // filter: refuse what has no endpoints
	chainDeny       = "DENY"    // filter: drop what source ranges do not let pass
)

func (r *renderer) setChain(set model.EndpointSets) string {
	if set == model.LocalSet {
		return r.chainName(chainLocal)
	}
	return r.chainName(chainCluster)
}

func (r *renderer) add(filter bool, purpose string, rules []string) string {
	name := r.chainName(purpose)
	for _, c := range r.port.chains {
		if c.name == name {
			return name
		}
	}
	r.port.chains = append(r.port.chains, ownChain{filter, name, rules})
	return name
}

func (r *renderer) render() {
	p := r.port
	for i := range p.fronts {
		r.renderNAT(&p.fronts[i], p.Destinations[i].Restricted)
		r.renderRefusal(&p.fronts[i], p.Destinations[i].Restricted)
	}
	// A set that only one front leads to, and directly, needs no chain of its own. Node ports have one all the same: with a group
	// below them the names of their chains would be too long.
	for i, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		endpoints := p.Endpoints(set)
		if r.users[i] == 0 {
			continue
		}
		chain := r.setChain(set)
		if r.users[i] == 1 && p.AffinityTimeout == 0 && len(endpoints) <= maxInline {
			if fr := p.frontTo("-g " + chain); fr != nil && fr.key.addr.IsValid() {
				fr.to = target{endpoints: endpoints}
				continue
			}
		}
		rules := r.port.affinityRulesOr(r.config, endpoints)
		p.chains = append(p.chains, ownChain{false, chain, rules})
	}
}

func (p *port) frontTo(rule string) *front {
	for i := range p.fronts {
		if p.fronts[i].to.rule == rule {
			return &p.fronts[i]
		}
	}
	return nil
}

func (p *port) affinityRulesOr(c *config, endpoints []netip.AddrPort) []string {
	if p.AffinityTimeout > 0 {
		return p.affinityChain(c, endpoints)
	}
	match := "-p " + protocolText(p.Name.Protocol)
	return balance(nil, match+comment(portComment(p.Name)), match, endpoints)
}

// toSet returns the rule that leads to the endpoints of a route.
func (r *renderer) toSet(rt model.Route) string {
	r.users[rt.Endpoints/model.LocalSet]++
	return "-g " + r.setChain(rt.Endpoints)
}

// renderNAT says what table nat does for a front.
func (r *renderer) renderNAT(fr *front, restricted bool) {
	k := r.kinds(fr)
	if r.isEmpty(k.pod) && r.isEmpty(k.node) && r.isEmpty(k.other) {
		return
	}
	m := masqOf(k.other.Masquerade)
	nodePort := !fr.key.addr.IsValid()
	rule := ""
	if r.simple(k) && (!nodePort || m != masqUnlessPod) {
		fr.masquerade = m
		rule = r.toSet(k.other)
	} else {
		rule = "-g " + r.external(k)
	}
	if restricted {
		var rules []string
		for i, p := range r.port.SourceRanges {
			match := "-s " + prefixText(p)
			if p.Bits() == 0 {
				match = "-p " + protocolText(fr.key.protocol)
			}
			if i == 0 {
				match += comment(portComment(r.port.Name))
			}
			rules = append(rules, match+" "+rule)
		}
		rule = "-g " + r.add(false, chainRestricted, rules)
	}
	fr.to.rule = rule
}

// external returns the chain that tells traffic apart by where it comes from (S27).
func (r *renderer) external(k kinds) string {
	name := r.chainName(chainExternal)
	for _, c := range r.port.chains {
		if c.name == name {
			return name
		}
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
		rules = append(rules, match+r.toSet(rt))
	}
	if !r.same(k.pod, k.other) || !r.same(k.pod, k.node) || k.other.Masquerade == model.MasqueradeUnlessLocalPod {
		for _, isLocalPod := range r.isLocalPod() {
			rt := k.pod
			if rt.Masquerade == model.MasqueradeUnlessLocalPod {
				rt.Masquerade = model.MasqueradeNever
			}
			lead(isLocalPod, rt)
		}
	}
	if !r.same(k.node, k.other) {
		lead("-m addrtype --src-type LOCAL", k.node)
	}
	lead("", k.other)
	rules[0] = insertComment(rules[0], portComment(r.port.Name))
	return r.add(false, chainExternal, rules)
}

// renderRefusal says what table filter does for a front: to packets that table nat has not led to an endpoint.
func (r *renderer) renderRefusal(fr *front, restricted bool) {
	k := r.kinds(fr)
	none := !r.isEmpty(k.pod) && !r.isEmpty(k.node) && !r.isEmpty(k.other)
	all := r.isEmpty(k.pod) && r.isEmpty(k.node) && r.isEmpty(k.other)
	var rule string
	switch {
	case none && !restricted:
		return
	case none:
		fr.refuse.rule = dropText
		return
	case all && r.simple(k):
		rule = r.verdict(k.other)
	default:
		rule = "-g " + r.refusal(k)
	}
	if restricted {
		rules := make([]string, 0, len(r.port.SourceRanges)+1)
		for _, p := range r.port.SourceRanges {
			match := "-s " + prefixText(p) + " "
			if p.Bits() == 0 {
				match = ""
			}
			rules = append(rules, match+rule)
		}
		rules = append(rules, dropText)
		rules[0] = insertComment(rules[0], portComment(r.port.Name))
		rule = "-g " + r.add(true, chainDeny, rules)
	}
	fr.refuse.rule = rule
}

// refusal returns the chain that refuses traffic depending on where it comes from.
func (r *renderer) refusal(k kinds) string {
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
		refuse(isLocalPod, k.pod)
	}
	refuse("-m addrtype --src-type LOCAL", k.node)
	refuse("", k.other)
	rules[0] = insertComment(rules[0], portComment(r.port.Name))
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
