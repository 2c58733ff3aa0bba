package rules

import (
	"net/netip"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The chains that every table has. ("reject" and "drop" are words that nft reserves.)
const (
	RejectChain      = "reject-traffic"
	DropChain        = "drop-traffic"
	preroutingChain  = "nat-prerouting"
	outputChain      = "nat-output"
	postroutingChain = "nat-postrouting"
	forwardChain     = "filter-forward"
)

// Priorities of the base chains. Of two chains of type nat with one priority the kernel runs the one first that was
// registered last, and then which program started last would decide who translates a packet, or marks a connection by
// the destination that it sees. So those of a proxy come before dstnat (-100) and srcnat (100), where others have
// theirs, as kube-proxy's jumps are the first rules of its tables in mode iptables (S67). The kernel translates for all
// of them at -100 and 100: to chains of other types the order is the same as with dstnat and srcnat.
//
// IPVS sees packets of the node itself at -98, and those that are addressed to it at 99.
const (
	beforeDstNAT = -110
	afterDstNAT  = -90
	filter       = 0
	beforeSrcNAT = 90
)

// Chain is a chain with its rules.
type Chain struct {
	dp.Chain
	Rules []dp.Rule
}

// NewChain returns a chain that others jump to.
func NewChain(name string, rules ...dp.Rule) Chain { return Chain{dp.Chain{Name: name}, rules} }

// Rule returns a rule without a comment.
func Rule(statements ...dp.Statement) dp.Rule { return dp.Rule{Statements: statements} }

// Commented returns a rule with a comment.
func Commented(comment string, statements ...dp.Statement) dp.Rule {
	return dp.Rule{Statements: statements, Comment: comment}
}

// Verdicts returns the chains that refuse and drop.
func Verdicts() []Chain {
	return []Chain{NewChain(RejectChain, Rule(dp.Reject{})), NewChain(DropChain, Rule(dp.Drop{}))}
}

// BaseChains returns the base chains. New connections pass services, then check, unless they are to the node itself,
// and then masquerade. outputCheck is the name of the chain with check on output.
func BaseChains(services, masquerade, check []dp.Rule, outputCheck string) []Chain {
	return []Chain{
		{dp.Chain{Name: preroutingChain, Hook: dp.Prerouting, Priority: beforeDstNAT}, services},
		{dp.Chain{Name: outputChain, Hook: dp.Output, Priority: beforeDstNAT}, services},
		{dp.Chain{Name: postroutingChain, Hook: dp.Postrouting, Priority: beforeSrcNAT}, masquerade},
		{dp.Chain{Name: forwardChain, Hook: dp.Forward, Priority: filter, Filter: true}, check},
		{dp.Chain{Name: outputCheck, Hook: dp.Output, Priority: afterDstNAT, Filter: true}, check},
	}
}

// Masquerade returns rules that masquerade packets with the mark, which they clear (S31), and those of endpoints that
// reach themselves (S29).
func Masquerade(mark uint32, hairpin *dp.Set) []dp.Rule {
	return []dp.Rule{Rule(dp.HasMark{Bit: mark}, dp.FlipMark{Bit: mark}, dp.Masquerade{}), masqueradeHairpin(hairpin)}
}

// DropUnused returns rules that drop packets to addresses of the service CIDRs (S33).
func DropUnused(serviceCIDRs []netip.Prefix) (rules []dp.Rule) {
	for _, cidr := range serviceCIDRs {
		rules = append(rules, Commented("service addresses that are not in use",
			dp.InPrefix{Field: dp.DestinationAddr, Prefix: cidr}, dp.Drop{}))
	}
	return rules
}

// LocalPods returns matches, any one of which means that the source is a pod of this node (S30). With not, all of them
// together mean that it is not.
func LocalPods(l model.LocalPods, not bool) (matches []dp.Statement) {
	switch {
	case l.Bridge != "":
		return []dp.Statement{dp.FromInterface{Name: l.Bridge, Not: not}}
	case l.InterfacePrefix != "":
		return []dp.Statement{dp.FromInterface{Name: l.InterfacePrefix, Prefix: true, Not: not}}
	}
	for _, p := range l.CIDRs {
		matches = append(matches, dp.InPrefix{Field: dp.SourceAddr, Prefix: p, Not: not})
	}
	return matches
}

// FromPods returns rules that go to a chain with packets from pods of this node (S30).
func FromPods(l model.LocalPods, chain string) (rules []dp.Rule) {
	for _, match := range LocalPods(l, false) {
		rules = append(rules, Rule(match, dp.Goto{Chain: chain}))
	}
	return rules
}

// BySource returns a chain that goes to one chain for packets from pods of this node, to another for those from the
// node itself, and to a third for all others (S27).
func BySource(name string, l model.LocalPods, pod, node, other string) Chain {
	ch := NewChain(name)
	if pod != other || pod != node {
		ch.Rules = FromPods(l, pod)
	}
	if node != other {
		ch.Rules = append(ch.Rules, Rule(dp.IsLocal{Field: dp.SourceAddr}, dp.Goto{Chain: node}))
	}
	ch.Rules = append(ch.Rules, Rule(dp.Goto{Chain: other}))
	return ch
}
