package nft

import (
	"cmp"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// action is what happens to traffic from one kind of source to a service port. Each action has a chain. Service ports
// whose traffic is treated alike share it, unless they have their own chains.
type action struct {
	verdict    model.Verdict // if n is 0
	set        model.EndpointSets
	n          int // endpoints in the set
	masquerade model.Masquerade
	nodePort   bool
	own        *ownPort // the service port, if it has its own chains
}

// actions are what happens to traffic through a frontend: an action for each kind of source.
type actions struct {
	fromPod, fromNode, other action
	sources                  rules.SourcesID // only from these, if any
	onNode                   bool            // only to the addresses that serve node ports
}

// actionsOf returns what happens to traffic through the frontends of a kind of the service port.
func (s *side) actionsOf(kind frontend.Kind) actions {
	follow := func(r model.Route) action {
		n := s.Size(r.Endpoints)
		switch {
		case n == 0:
			return action{verdict: r.Empty}
		case s.own != nil: // its chains serve any number, by any frontend
			return action{set: r.Endpoints, n: 1, masquerade: r.Masquerade, own: s.own}
		}
		return action{set: r.Endpoints, n: n, masquerade: r.Masquerade, nodePort: kind == frontend.NodePort}
	}
	r := s.RoutesOf(kind)
	a := actions{fromPod: follow(r.FromPod), fromNode: follow(r.FromNode), other: follow(r.Other),
		onNode: kind == frontend.NodePort}
	if s.Restricts(kind) {
		a.sources = s.sources
	}
	return a
}

func setName(s model.EndpointSets) string {
	if s == model.LocalSet {
		return "local"
	}
	return "cluster"
}

// chainFor returns the name of the chain for actions, for example "pod-cluster3-node-cluster3masq-other-local2", and
// plans it, and those that it goes to, if they are missing.
func (p *plan) chainFor(a actions) string {
	own := cmp.Or(a.fromPod.own, a.fromNode.own, a.other.own)
	if own == nil {
		if name, ok := p.base.names[a]; ok && (a.sources == "" || p.base.uses[name] > 0) {
			return name
		}
	}
	name := p.chainOf(a.fromPod)
	if a.fromPod != a.other || a.fromNode != a.other {
		pod, node, other := name, p.chainOf(a.fromNode), p.chainOf(a.other)
		prefix := ""
		switch {
		case own != nil:
			prefix = own.name + "-"
		case a.fromPod.nodePort || a.fromNode.nodePort || a.other.nodePort:
			prefix = nodePortPrefix
		}
		code := func(chain string) string {
			return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(chain, prefix), "-traffic"), "-", "")
		}
		name = prefix + mixedPrefix + code(pod) + "-node-" + code(node) + "-other-" + code(other)
		p.ensure(rules.BySource(name, p.base.config.localPods, pod, node, other), own)
	}
	switch to := name; {
	case a.sources != "":
		name = a.sources.Restricted(to)
		p.ensure(a.sources.RestrictedChain(to), nil) // its uses are counted
	case a.onNode:
		name = onNodePrefix + to
		p.ensure(p.base.config.onNodeChain(p.base.sets, name, to), own)
	}
	if own == nil {
		p.base.names[a] = name
	}
	return name
}

// The prefixes of the names of chains for node ports, of those that check whether the address serves them, and of those
// for traffic that is not treated alike.
const (
	nodePortPrefix = "nodeport-"
	onNodePrefix   = "on-node-"
	mixedPrefix    = "pod-"
)

// chainOf returns the name of the chain for an action, for example "cluster-3", "nodeport-local-2", "cluster-3-masq" or
// "port-...-cluster", and plans it: it marks for masquerading and sends to one endpoint at random.
func (p *plan) chainOf(a action) string {
	var name string
	var last dp.Statement = dp.DNATMap{N: uint32(a.n), Map: p.base.sets[slotsOf(a.set, a.nodePort)]}
	switch {
	case a.n == 0 && a.verdict == model.Drop:
		return rules.DropChain
	case a.n == 0:
		return rules.RejectChain
	case a.own != nil:
		var done model.Masquerade
		name, done = a.own.chain(a.set)
		if last = (dp.Goto{Chain: name}); a.masquerade == done {
			return name // changeOwn makes it
		}
	default:
		if name = setName(a.set) + "-" + strconv.Itoa(a.n); a.nodePort {
			name = nodePortPrefix + name
		}
	}
	name += suffixOf(a.masquerade)
	ch := rules.NewChain(name, append(p.masquerading(a.masquerade), rules.Rule(last))...)
	if a.own.isSticky() {
		ch.Comment = a.own.comment
	}
	p.ensure(ch, a.own)
	return name
}

// suffixOf returns the suffix of the name of a chain that begins with the rules for this masquerading.
func suffixOf(m model.Masquerade) string {
	switch m {
	case model.MasqueradeAlways:
		return "-masq"
	case model.MasqueradeUnlessLocalPod:
		return "-masq-nonpod"
	}
	return ""
}

// masquerading returns rules that mark traffic for masquerading.
func (p *plan) masquerading(m model.Masquerade) []dp.Rule {
	setMark := dp.SetMark{Bit: p.base.config.mark}
	switch m {
	case model.MasqueradeAlways:
		return []dp.Rule{rules.Rule(setMark)}
	case model.MasqueradeUnlessLocalPod:
		return []dp.Rule{rules.Rule(append(rules.LocalPods(p.base.config.localPods, true), setMark)...)}
	}
	return nil
}
