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

func (f *family) postroutingRules() []string {
	marked := markMatch(f.config.mark) + "-j " + masqueradeChain
	switch {
	case !f.noBPF:
		toItself := sameSource(f.config.family) + comment("a pod that reaches itself")
		return []string{toItself + "-j " + masqueradeChain, marked}
	case !f.hairpins.isEmpty():
		return []string{"-j " + f.hairpins.name, marked}
	}
	return []string{marked}
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

// planHairpins updates the tree of addresses.
func (f *family) planHairpins(d frontend.Diff[netip.Addr]) {
	for _, a := range d.Added {
		f.hairpins.set(&entry{key: hairpinKey(a), to: target{rule: "-j " + masqueradeChain}})
	}
	for _, a := range d.Removed {
		f.hairpins.remove(hairpinKey(a), model.PortName{})
	}
}

// withoutBPF plans for a kernel that has no match bpf.
func (f *family) withoutBPF(c *frontend.Changes) {
	f.noBPF = true
	f.planHairpins(c.All().Hairpins())
	f.planBase()
}
