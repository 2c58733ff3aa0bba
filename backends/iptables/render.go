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
	// users are how many rules jump to each of port.sets.
	users [2]int
}

// routesOf returns the routes of a kind of frontend, reduced to what happens to their traffic now: it goes to an
// endpoint and may be masqueraded or, if there is none, it is refused.
func (r *renderer) routesOf(kind frontend.Kind) frontend.SourceRoutes {
	now := func(rt model.Route) model.Route {
		if r.from.Size(rt.Endpoints) == 0 {
			return model.Route{Empty: rt.Empty}
		}
		return model.Route{Endpoints: rt.Endpoints, Masquerade: rt.Masquerade}
	}
	k := r.from.RoutesOf(kind)
	return frontend.SourceRoutes{FromPod: now(k.FromPod), FromNode: now(k.FromNode), Other: now(k.Other)}
}

// The purposes of a service port's chains, apart from those of its sets.
const (
	chainExternal   = "EXT"   // to a set that depends on where the traffic comes from
	chainRestricted = "ALLOW" // only what source ranges let pass
	chainRefuse     = "EMPTY" // filter: refuse what has no endpoints
	chainDeny       = "DENY"  // filter: drop what source ranges do not let pass
)

// add adds a chain of the port's own, unless it exists already, and returns a jump to it.
func (r *renderer) add(in int, purpose string, rules []string) string {
	name := r.port.chain(purpose)
	if !r.port.has(name) {
		r.port.chains = append(r.port.chains, ownChain{in, name, rules})
	}
	return "-g " + name
}

// rule appends a rule to those of a chain. The first rule has a comment with the service port.
func (r *renderer) rule(rules []string, match, target string) []string {
	if len(rules) == 0 {
		match += comment(portComment(r.port.name))
	}
	return append(rules, match+target)
}

// render plans a service port.
func (c *config) render(change *frontend.PortChange) *port {
	from := change.After
	r := &renderer{config: c, from: from, port: newPort(from.Name)}
	p := r.port
	for kind := range numKinds {
		if from.Count(kind) > 0 {
			routes := r.routesOf(kind)
			r.renderNAT(kind, routes)
			r.renderRefusal(kind, routes)
		}
	}
	// A set that only one frontend uses, and directly, needs no chain of its own. Node ports have one anyway: with a
	// group below them the names of their chains would be too long.
	for i, set := range frontend.RouteSets() {
		own := &p.sets[i]
		if r.users[i] == 1 && from.AffinityTimeout == 0 && from.Size(set) <= maxInline {
			rule := "-g " + own.chain
			at := slices.IndexFunc(p.traffic[:frontend.NodePort], func(t traffic) bool { return t.to[inNAT].rule == rule })
			if at >= 0 {
				p.traffic[at].to[inNAT] = target{endpoints: targetsOf(change.Endpoints(set))}
				*own = ownSet{}
				continue
			}
		}
		if r.users[i] > 0 {
			own.layOut(from.Size(set), from.AffinityTimeout > 0)
		}
	}
	return p
}

// toSet returns a jump to the endpoints of a route, and counts its users.
func (r *renderer) toSet(rt model.Route, users int) string {
	i := slices.Index(frontend.RouteSets(), rt.Endpoints)
	if r.users[i] == 0 {
		r.port.sets[i].chain = r.port.chain([2]string{"CLUSTER", "LOCAL"}[i])
	}
	r.users[i] += users
	return "-g " + r.port.sets[i].chain
}

// renderNAT says what table nat does for the frontends of a kind.
func (r *renderer) renderNAT(kind frontend.Kind, k frontend.SourceRoutes) {
	if k.Sets() == 0 {
		return
	}
	t := &r.port.traffic[kind]
	rule := &t.to[inNAT].rule
	if m := k.Other.Masquerade; k.Same() && (kind != frontend.NodePort || m != model.MasqueradeUnlessLocalPod) {
		t.masquerade = m
		*rule = r.toSet(k.Other, r.from.Count(kind))
	} else {
		*rule = r.external(k)
	}
	if r.from.Restricts(kind) {
		*rule = r.add(inNAT, chainRestricted, r.fromRanges(inNAT, *rule))
	}
}

// fromRanges returns rules that do what rule says, for traffic from the source ranges.
func (r *renderer) fromRanges(table int, rule string) (rules []string) {
	if len(r.from.SourceRanges) > maxOwnRanges {
		s := r.sourcesOf(r.from.SourceRanges)
		r.port.sources, r.port.shared = s, append(r.port.shared, sharedChain{table, s.chain})
		return []string{comment(portComment(r.port.name)) + "-j " + s.chain, rule}
	}
	for _, p := range r.from.SourceRanges {
		rules = r.rule(rules, sourceMatch(p), rule)
	}
	return rules
}

// bySource calls add for each route with the match for its sources, where the source makes a difference (S27).
func (r *renderer) bySource(k frontend.SourceRoutes, add func(match string, rt model.Route)) {
	fromPod := k.FromPod
	if fromPod.Masquerade == model.MasqueradeUnlessLocalPod {
		fromPod.Masquerade = model.MasqueradeNever
	}
	if fromPod != k.Other || fromPod != k.FromNode {
		for _, isLocalPod := range r.isLocalPod() {
			add(isLocalPod, fromPod)
		}
	}
	if k.FromNode != k.Other {
		add("-m addrtype --src-type LOCAL ", k.FromNode)
	}
	add("", k.Other)
}

// external returns a jump to the chain that dispatches traffic by its source.
func (r *renderer) external(k frontend.SourceRoutes) string {
	if name := r.port.chain(chainExternal); r.port.has(name) {
		return "-g " + name // its users are counted
	}
	var rules []string
	r.bySource(k, func(match string, rt model.Route) {
		if rt.Endpoints == 0 {
			rules = r.rule(rules, match, "-j RETURN")
			return
		}
		if rt.Masquerade != model.MasqueradeNever {
			rules = r.rule(rules, match, markText(r.mark, true))
		}
		rules = r.rule(rules, match, r.toSet(rt, 1))
	})
	return r.add(inNAT, chainExternal, rules)
}

// renderRefusal says what table filter does for the frontends of a kind: to packets that table nat has sent to no
// endpoint.
func (r *renderer) renderRefusal(kind frontend.Kind, k frontend.SourceRoutes) {
	rule := &r.port.traffic[kind].to[inFilter].rule
	switch {
	case k.FromPod.Endpoints != 0 && k.FromNode.Endpoints != 0 && k.Other.Endpoints != 0:
		if r.from.Restricts(kind) {
			*rule = dropText
		}
		return
	case k.Same():
		*rule = r.verdict(k.Other)
	default: // it depends on the source
		var rules []string
		r.bySource(k, func(match string, rt model.Route) { rules = r.rule(rules, match, r.verdict(rt)) })
		*rule = r.add(inFilter, chainRefuse, rules)
	}
	if r.from.Restricts(kind) {
		*rule = r.add(inFilter, chainDeny, r.rule(r.fromRanges(inFilter, *rule), "", dropText))
	}
}

const dropText = "-j DROP"

// verdict refuses the traffic of a route without endpoints.
func (r *renderer) verdict(rt model.Route) string {
	switch {
	case rt.Endpoints != 0:
		return "-j RETURN"
	case rt.Empty == model.Drop:
		return dropText
	case r.family == model.IPv6:
		return "-j REJECT --reject-with icmp6-port-unreachable"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}
