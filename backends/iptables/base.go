package iptables

import (
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// planBase plans the chains that always exist, those that exist while a tree is not empty, and the jumps from built-in
// chains to them.
func (f *family) planBase() {
	c := f.config
	services, marked := f.servicesRules()
	f.nat.set(servicesChain, services)
	f.nat.setOrDrop(markedChain, marked)
	nodePorts, marked := f.nodePortsRules()
	f.nat.setOrDrop(nodePortsChain, nodePorts)
	f.nat.setOrDrop(markedNodePorts, marked)
	f.nat.set(postroutingChain, f.postroutingRules())
	f.nat.set(masqueradeChain, c.masqueradeRules())

	f.filter.set(refuseChain, f.refuseRules())
	f.filter.setOrDrop(refuseNodePorts, f.refuseNodePortsRules())
	f.filter.set(forwardChain, c.forwardRules())
	f.filter.setOrDrop(localnetChain, c.localnetRules())
	f.planJumps()
}

// toNodePorts returns jumps to a chain for what goes to the addresses that serve node ports, if the chain has rules.
func (c *config) toNodePorts(chain string, rules []string) (jumps []string) {
	if len(rules) == 0 {
		return nil
	}
	for _, m := range c.nodePorts {
		jumps = append(jumps, m+"-m addrtype --dst-type LOCAL -j "+chain)
	}
	return jumps
}

// into returns jumps to the trees that are not empty.
func (f *family) into(table int, isNodePort bool, m model.Masquerade) []string {
	var rules []string
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		if t := f.tree(treeKey{table, isNodePort, m, p}); !t.isEmpty() {
			rules = append(rules, protocolMatch(p)+"-j "+t.name)
		}
	}
	return rules
}

// servicesRules dispatch packets to the trees, and set the mark on those to masquerade. Packets that are not for a
// service must keep the mark's bit as it was: off or, if others have set it, on. So packets that arrive with the bit
// set go through rules that do not touch it; if they are for a service, they are masqueraded, as with kube-proxy.
func (f *family) servicesRules() (rules, marked []string) {
	c := f.config
	never := f.into(inNAT, false, model.MasqueradeNever)
	unlessPod := f.into(inNAT, false, model.MasqueradeUnlessLocalPod)
	always := f.into(inNAT, false, model.MasqueradeAlways)
	toNodePorts, toMarked := f.nodePortsRules()
	nodePorts, markedToo := c.toNodePorts(nodePortsChain, toNodePorts), c.toNodePorts(markedNodePorts, toMarked)
	if len(unlessPod)+len(always)+len(nodePorts) == 0 {
		return never, nil // nothing here sets the mark
	}
	rules = append([]string{markMatch(c.mark) + comment("marked by others") + "-g " + markedChain}, never...)
	if len(unlessPod) > 0 {
		rules = append(append(rules, c.markUnlessLocalPod()...), unlessPod...)
	}
	if len(always)+len(nodePorts) > 0 {
		rules = append(rules, comment("everything is masqueraded")+markText(c.mark, true))
	}
	rules = append(slices.Concat(rules, always, nodePorts), comment("none of ours")+markText(c.mark, false))
	return rules, slices.Concat(never, unlessPod, always, markedToo)
}

// notLocalhost returns a rule that leaves loopback addresses alone, unless they are served.
func (c *config) notLocalhost() []string {
	switch {
	case c.localhostNodePorts:
		return nil
	case c.family == model.IPv6:
		return []string{"-d ::1/128 -j RETURN"}
	}
	return []string{"-d 127.0.0.0/8 -j RETURN"}
}

// nodePortsRules are for packets with our mark, and for those that others have marked.
func (f *family) nodePortsRules() (rules, marked []string) {
	always, never := f.into(inNAT, true, model.MasqueradeAlways), f.into(inNAT, true, model.MasqueradeNever)
	if len(always)+len(never) == 0 || len(f.config.nodePorts) == 0 {
		return nil, nil
	}
	rules = slices.Concat(f.config.notLocalhost(), always)
	marked = slices.Concat(rules, never)
	if len(never) > 0 {
		rules = append(append(rules, markText(f.config.mark, false)), never...)
	}
	return rules, marked
}

func (c *config) masqueradeRules() []string {
	return []string{markText(c.mark, false), "-j MASQUERADE --random-fully"}
}

func (f *family) refuseRules() []string {
	rules := append([]string{"-m conntrack --ctstate DNAT -j RETURN"}, f.into(inFilter, false, 0)...)
	return append(rules, f.config.toNodePorts(refuseNodePorts, f.refuseNodePortsRules())...)
}

func (f *family) refuseNodePortsRules() []string {
	trees := f.into(inFilter, true, 0)
	if len(trees) == 0 || len(f.config.nodePorts) == 0 {
		return nil
	}
	return append(f.config.notLocalhost(), trees...)
}

// forwardRules accept service traffic even if the policy of FORWARD is to drop, as kube-proxy does.
func (c *config) forwardRules() []string {
	var rules []string
	if c.dropInvalid {
		// What connection tracking does not know keeps the address that translation should have changed: its receiver
		// would end the connection (S34).
		rules = append(rules, "-m conntrack --ctstate INVALID -j DROP")
	}
	return append(rules,
		markMatch(c.mark)+"-m conntrack --ctstate DNAT "+comment("to be masqueraded")+"-j ACCEPT",
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
}

// localnetRules keep loopback addresses, which route_localnet opens, closed to others (S36).
func (c *config) localnetRules() []string {
	if !c.localhostNodePorts {
		return nil
	}
	return []string{"! -s 127.0.0.0/8 -d 127.0.0.0/8 " + comment("loopback addresses are not for others") +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"}
}

// planJumps plans the jumps from built-in chains to ours.
func (f *family) planJumps() {
	jump := func(chain, match, text, to string) dp.BuiltinRule {
		return dp.BuiltinRule{Chain: chain, Rule: match + comment("kube-proxy-lib: "+text) + "-j " + to}
	}
	const isNew = "-m conntrack --ctstate NEW "
	const refuse = "services without endpoints"
	filter := []dp.BuiltinRule{
		jump("INPUT", isNew, refuse, refuseChain),
		jump("FORWARD", isNew, refuse, refuseChain),
		jump("OUTPUT", isNew, refuse, refuseChain),
		jump("FORWARD", "", "services", forwardChain),
	}
	if f.config.localhostNodePorts {
		const loopback = "node ports on loopback addresses"
		filter = append(filter, jump("INPUT", "", loopback, localnetChain), jump("OUTPUT", "", loopback, localnetChain))
	}
	if !f.healthChecks.isEmpty() {
		for _, m := range f.config.nodePorts { // packets in INPUT are for an address of the node
			filter = append(filter, jump("INPUT", m+"-p tcp ", "health checks", healthCheckChain))
		}
	}
	f.filter.wantedJumps = filter
	f.nat.wantedJumps = []dp.BuiltinRule{
		jump("PREROUTING", "", "services", servicesChain),
		jump("OUTPUT", "", "services", servicesChain),
		jump("POSTROUTING", "-m conntrack --ctstate DNAT ", "services", postroutingChain),
	}
}
