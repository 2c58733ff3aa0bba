package nft

import (
	"fmt"
	"slices"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// destination is what happens to one kind of traffic to a service port: a chain that all service ports share for which the
// same happens. Service ports with session affinity have chains of their own.
type destination struct {
	verdict    model.Verdict // if n is 0
	set        model.EndpointSets
	n          int // endpoints in the set
	masquerade model.Masquerade
	nodePort   bool
	affinity   string // the name of the service port's own chains, or ""
}

// dispatch is where a key of service-ips or nodeports leads to: a destination for each kind of traffic.
type dispatch struct {
	fromPod, fromNode, other destination
	restricted               bool // only from the sources in vip-sources
}

// simple tells whether all traffic has the same destination.
func (d dispatch) simple() bool { return d.fromPod == d.other && d.fromNode == d.other }

// newDestination follows a route. n is the number of endpoints in the route's set.
func newDestination(r model.Route, n int, nodePort bool, affinity string) destination {
	if n == 0 {
		return destination{verdict: r.Empty}
	}
	d := destination{set: r.Endpoints, n: n, masquerade: r.Masquerade, nodePort: nodePort}
	if affinity != "" {
		// Its chains name endpoints, so they serve any address and any number.
		d.affinity, d.n, d.nodePort = affinity, 1, false
	}
	return d
}

func setName(s model.EndpointSets) string {
	if s == model.LocalSet {
		return "local"
	}
	return "cluster"
}

// chainName returns for example "cluster-3", "nodeport-local-2", "cluster-3-masq", or "affinity-...-cluster".
func (d destination) chainName() string {
	switch {
	case d.n == 0 && d.verdict == model.Drop:
		return dropChain
	case d.n == 0:
		return rejectChain
	}
	name := ""
	switch {
	case d.affinity != "":
		name = d.affinity + "-" + setName(d.set)
	case d.nodePort:
		name = fmt.Sprintf("nodeport-%s-%d", setName(d.set), d.n)
	default:
		name = fmt.Sprintf("%s-%d", setName(d.set), d.n)
	}
	return name + masqueradeSuffix(d.masquerade)
}

func masqueradeSuffix(m model.Masquerade) string {
	switch m {
	case model.MasqueradeAlways:
		return "-masq"
	case model.MasqueradeUnlessLocalPod:
		return "-masq-nonpod"
	}
	return ""
}

// code is the short form of chainName for the names of chains that lead to several.
func (d destination) code() string {
	switch {
	case d.n == 0 && d.verdict == model.Drop:
		return "drop"
	case d.n == 0:
		return "reject"
	}
	code := setName(d.set)
	if d.affinity == "" {
		code += fmt.Sprint(d.n)
	}
	return code + strings.TrimPrefix(masqueradeSuffix(d.masquerade), "-")
}

// chainName returns the name of the chain that d leads to, for example "pod-cluster3-node-cluster3masq-other-local2".
func (d dispatch) chainName() string {
	name := d.other.chainName()
	if !d.simple() {
		name = "pod-" + d.fromPod.code() + "-node-" + d.fromNode.code() + "-other-" + d.other.code()
		if a := d.affinity(); a != "" {
			name = a + "-" + name
		} else if d.nodePort() {
			name = "nodeport-" + name
		}
	}
	if d.restricted {
		return "restricted-" + name
	}
	return name
}

func (d dispatch) affinity() string {
	for _, dest := range d.destinations() {
		if dest.affinity != "" {
			return dest.affinity
		}
	}
	return ""
}

func (d dispatch) nodePort() bool {
	return slices.ContainsFunc(d.destinations(), func(d destination) bool { return d.nodePort })
}

func (d dispatch) destinations() []destination { return []destination{d.fromPod, d.fromNode, d.other} }

// chains returns the chains that d needs besides those that are always there, in the order in which they can be made; the
// last one is that of d itself. Chains of session affinity are not among them.
func (c *config) chains(s *sets, d dispatch) []chain {
	var chains []chain
	if d.restricted {
		inner := d
		inner.restricted = false
		chains = c.chains(s, inner)
		return append(chains, chain{Chain: dp.Chain{Name: d.chainName()}, rules: []dp.Rule{
			{Statements: []dp.Statement{dp.InSet{Key: s.vipSources.Key, Set: s.vipSources.Name, Not: true}, dp.Drop{}}},
			{Statements: []dp.Statement{dp.Goto{Chain: inner.chainName()}}},
		}})
	}
	for _, dest := range d.destinations() {
		if dest.n > 0 && (dest.affinity == "" || dest.masquerade != model.MasqueradeNever) {
			chains = append(chains, c.balanceChain(s, dest))
		}
	}
	if !d.simple() {
		chains = append(chains, c.splitChain(d))
	}
	return chains
}

// balanceChain marks for masquerading and sends to one endpoint at random.
func (c *config) balanceChain(s *sets, d destination) chain {
	ch := chain{Chain: dp.Chain{Name: d.chainName()}}
	setMark := dp.SetMark{Bit: c.mark}
	switch d.masquerade {
	case model.MasqueradeAlways:
		ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{setMark}})
	case model.MasqueradeUnlessLocalPod:
		ch.rules = append(ch.rules, dp.Rule{Statements: append(c.isNoLocalPod(), setMark)})
	}
	if d.affinity != "" {
		d.masquerade = model.MasqueradeNever
		ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{dp.Goto{Chain: d.chainName()}}})
		return ch
	}
	slots := s.slots(d.set, d.nodePort)
	ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{dp.DNATMap{Key: slots.Key, N: uint32(d.n), Map: slots.Name}}})
	return ch
}

// splitChain tells apart where traffic comes from.
func (c *config) splitChain(d dispatch) chain {
	ch := chain{Chain: dp.Chain{Name: d.chainName()}}
	if d.fromPod != d.other || d.fromPod != d.fromNode {
		for _, isLocalPod := range c.isLocalPod() {
			ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{isLocalPod, dp.Goto{Chain: d.fromPod.chainName()}}})
		}
	}
	if d.fromNode != d.other {
		ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{
			dp.IsLocal{Field: dp.SourceAddr}, dp.Goto{Chain: d.fromNode.chainName()}}})
	}
	ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{dp.Goto{Chain: d.other.chainName()}}})
	return ch
}

// isLocalPod returns matches of which each is enough to say that the source is a pod of this node (S30).
func (c *config) isLocalPod() []dp.Statement {
	switch l := c.localPods; {
	case l.Bridge != "":
		return []dp.Statement{dp.FromInterface{Name: l.Bridge}}
	case l.InterfacePrefix != "":
		return []dp.Statement{dp.FromInterface{Name: l.InterfacePrefix, Prefix: true}}
	default:
		var statements []dp.Statement
		for _, p := range l.CIDRs {
			statements = append(statements, dp.InPrefix{Field: dp.SourceAddr, Prefix: p})
		}
		return statements
	}
}

// isNoLocalPod returns the matches that together say that the source is no pod of this node.
func (c *config) isNoLocalPod() []dp.Statement {
	statements := c.isLocalPod()
	for i, s := range statements {
		switch s := s.(type) {
		case dp.FromInterface:
			s.Not = true
			statements[i] = s
		case dp.InPrefix:
			s.Not = true
			statements[i] = s
		}
	}
	return statements
}
