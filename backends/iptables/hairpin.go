package iptables

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A pod that reaches itself through a service must see another source, or its reply would bypass the translation (S29).
// One rule does that for all pods, with a program that compares source and destination. On kernels without the match
// bpf a tree of addresses takes its place, with the endpoints that could reach themselves.

func (p *plan) postroutingRules() []string {
	rules := p.config.countLocalhost()
	switch {
	case !p.noBPF:
		toItself := sameSource(p.config.family) + comment("a pod that reaches itself")
		rules = append(rules, toItself+"-j "+masqueradeChain)
	case !p.hairpins.isEmpty():
		rules = append(rules, "-j "+p.hairpins.name)
	}
	return append(rules, markMatch(p.config.mark)+"-j "+masqueradeChain)
}

// sameSource returns a match for packets whose source is their destination.
func sameSource(f model.Family) string {
	source, words := 12, 1
	if f == model.IPv6 {
		source, words = 8, 4
	}
	var ops []string
	for i := range words {
		at := source + 4*i
		left := 4 * (words - 1 - i)
		ops = append(ops,
			fmt.Sprintf("32 0 0 %d", at),         // load a word of the source
			"7 0 0 0",                            // keep it
			fmt.Sprintf("32 0 0 %d", at+4*words), // load that word of the destination
			fmt.Sprintf("29 0 %d 0", left+1))     // if they differ, go to the end
	}
	ops = append(ops, "6 0 0 65535", "6 0 0 0")
	return fmt.Sprintf(`-m bpf --bytecode "%d,%s" `, len(ops), strings.Join(ops, ","))
}

func hairpinKey(a netip.Addr) frontend.Key { return frontend.Key{Addr: a, Protocol: noProtocol} }

// setHairpins updates the tree of addresses.
func (p *plan) setHairpins(d frontend.Diff[netip.Addr]) {
	for _, a := range d.Added {
		p.hairpins.set(&entry{key: hairpinKey(a), to: target{rule: "-j " + masqueradeChain}})
	}
	for _, a := range d.Removed {
		p.hairpins.remove(hairpinKey(a), model.PortName{})
	}
}
