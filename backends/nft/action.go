package nft

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
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
	own        string // the name of the service port's own chains, or ""
}

// actions are what happens to traffic through a frontend: an action for each kind of source.
type actions struct {
	fromPod, fromNode, other action
	restricted               bool // only from the sources in vip-sources
	onNode                   bool // only to the addresses that serve node ports
}

// simple reports whether the source makes no difference.
func (a actions) simple() bool { return a.fromPod == a.other && a.fromNode == a.other }

func (a actions) each() [3]action { return [3]action{a.fromPod, a.fromNode, a.other} }

// actionsOf returns what happens to traffic through the frontends of a kind of the service port.
func (p portPlan) actionsOf(kind frontend.Kind) actions {
	follow := func(r model.Route) action {
		n := p.Size(r.Endpoints)
		switch {
		case n == 0:
			return action{verdict: r.Empty}
		case p.own != nil: // its chains serve any number, by any frontend
			return action{set: r.Endpoints, n: 1, masquerade: r.Masquerade, own: p.own.name}
		}
		return action{set: r.Endpoints, n: n, masquerade: r.Masquerade, nodePort: kind == frontend.NodePort}
	}
	r := p.RoutesOf(kind)
	return actions{fromPod: follow(r.FromPod), fromNode: follow(r.FromNode), other: follow(r.Other),
		restricted: p.Restricts(kind), onNode: kind == frontend.NodePort}
}

func setName(s model.EndpointSets) string {
	if s == model.LocalSet {
		return "local"
	}
	return "cluster"
}

// chainName returns for example "cluster-3", "nodeport-local-2", "cluster-3-masq", or "port-...-cluster".
func (a action) chainName() string {
	switch {
	case a.n == 0 && a.verdict == model.Drop:
		return rules.DropChain
	case a.n == 0:
		return rules.RejectChain
	}
	name := fmt.Sprintf("%s-%d", setName(a.set), a.n)
	switch {
	case a.own != "":
		name = a.own + "-" + setName(a.set)
	case a.nodePort:
		name = "nodeport-" + name
	}
	switch a.masquerade {
	case model.MasqueradeAlways:
		name += "-masq"
	case model.MasqueradeUnlessLocalPod:
		name += "-masq-nonpod"
	}
	return name
}

// code is the short form of chainName for the names of chains that distinguish sources.
func (a action) code() string {
	code := strings.TrimPrefix(strings.TrimPrefix(a.chainName(), a.own+"-"), "nodeport-")
	return strings.ReplaceAll(strings.TrimSuffix(code, "-traffic"), "-", "")
}

// chainName returns the name of the chain for all three, for example
// "pod-cluster3-node-cluster3masq-other-local2".
func (a actions) chainName() string {
	name := a.other.chainName()
	if !a.simple() {
		name = "pod-" + a.fromPod.code() + "-node-" + a.fromNode.code() + "-other-" + a.other.code()
		if own := a.own(); own != "" {
			name = own + "-" + name
		} else if a.fromPod.nodePort || a.fromNode.nodePort || a.other.nodePort {
			name = "nodeport-" + name
		}
	}
	switch {
	case a.restricted:
		return rules.Restricted(name)
	case a.onNode:
		return "on-node-" + name
	}
	return name
}

func (a actions) own() string {
	for _, each := range a.each() {
		if each.own != "" {
			return each.own
		}
	}
	return ""
}

// chains returns the chains that actions need, in the order in which they can be made; the last one is that of a
// itself. It leaves out the chains that every table has, and a service port's own chains for each set.
func (c *config) chains(s *sets, a actions) []rules.Chain {
	var chains []rules.Chain
	if a.restricted || a.onNode {
		inner := actions{fromPod: a.fromPod, fromNode: a.fromNode, other: a.other}
		chains = c.chains(s, inner)
		if a.onNode {
			return append(chains, c.onNodeChain(s, a.chainName(), inner.chainName()))
		}
		return append(chains, rules.RestrictedChain(s[vipSources], inner.chainName()))
	}
	for _, each := range a.each() {
		if each.n > 0 && (each.own == "" || each.masquerade != model.MasqueradeNever) {
			chains = append(chains, c.balanceChain(s, each))
		}
	}
	if !a.simple() {
		chains = append(chains, rules.BySource(a.chainName(), c.localPods, a.fromPod.chainName(),
			a.fromNode.chainName(), a.other.chainName()))
	}
	return chains
}

// balanceChain marks for masquerading and sends to one endpoint at random.
func (c *config) balanceChain(s *sets, a action) rules.Chain {
	ch := rules.NewChain(a.chainName())
	setMark := dp.SetMark{Bit: c.mark}
	switch a.masquerade {
	case model.MasqueradeAlways:
		ch.Rules = []dp.Rule{rules.Rule(setMark)}
	case model.MasqueradeUnlessLocalPod:
		ch.Rules = []dp.Rule{rules.Rule(append(rules.LocalPods(c.localPods, true), setMark)...)}
	}
	last := rules.Rule(dp.DNATMap{N: uint32(a.n), Map: s[slotsOf(a.set, a.nodePort)]})
	if a.own != "" {
		a.masquerade = model.MasqueradeNever
		last = rules.Rule(dp.Goto{Chain: a.chainName()})
	}
	ch.Rules = append(ch.Rules, last)
	return ch
}
