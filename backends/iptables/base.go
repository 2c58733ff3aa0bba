package iptables

import (
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// setBase plans the chains that always exist, those that exist while a tree is not empty, and the jumps from built-in
// chains to them.
func (p *plan) setBase() {
	c, nat, filter := p.config, p.tables[inNAT], p.tables[inFilter]
	nodePorts, markedToNodePorts := p.nodePortsRules()
	nat.setOrDrop(nodePortsChain, nodePorts)
	nat.setOrDrop(markedNodePorts, markedToNodePorts)
	services, marked := p.servicesRules(c.toNodePorts(nodePortsChain, nodePorts),
		c.toNodePorts(markedNodePorts, markedToNodePorts))
	nat.set(servicesChain, services)
	nat.setOrDrop(markedChain, marked)
	nat.set(postroutingChain, p.postroutingRules())
	nat.set(masqueradeChain, []string{markText(c.mark, false), "-j MASQUERADE --random-fully"})
	nat.wantedJumps = []dp.BuiltinRule{
		jump("PREROUTING", "", "services", servicesChain),
		jump("OUTPUT", "", "services", servicesChain),
		jump("POSTROUTING", "-m conntrack --ctstate DNAT ", "services", postroutingChain),
	}

	refusedNodePorts := p.into(inFilter, true, 0)
	if len(refusedNodePorts) > 0 {
		refusedNodePorts = append(c.notLocalhost(), refusedNodePorts...)
	}
	filter.setOrDrop(refuseNodePorts, refusedNodePorts)
	filter.set(refuseChain, slices.Concat([]string{"-m conntrack --ctstate DNAT -j RETURN"},
		p.into(inFilter, false, 0), c.toNodePorts(refuseNodePorts, refusedNodePorts)))
	filter.set(forwardChain, c.forwardRules())
	filter.setOrDrop(localnetChain, c.localnetRules())
	filter.wantedJumps = c.filterJumps(!p.healthChecks.isEmpty())
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
func (p *plan) into(table int, isNodePort bool, m model.Masquerade) []string {
	if isNodePort && len(p.config.nodePorts) == 0 {
		return nil // no address serves them
	}
	var rules []string
	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		if t := p.trees[treeKey{table, isNodePort, m, protocol}]; t != nil && !t.isEmpty() {
			rules = append(rules, protocolMatch(protocol)+"-j "+t.name)
		}
	}
	return rules
}

// servicesRules dispatch packets to the trees, and set the mark on those to masquerade. Packets that are not for a
// service must keep the mark's bit as it was: off or, if others have set it, on. So packets that arrive with the bit
// set go through rules that do not touch it; if they are for a service, they are masqueraded, as with kube-proxy.
func (p *plan) servicesRules(nodePorts, markedToNodePorts []string) (rules, marked []string) {
	c := p.config
	never := p.into(inNAT, false, model.MasqueradeNever)
	unlessPod := p.into(inNAT, false, model.MasqueradeUnlessLocalPod)
	always := p.into(inNAT, false, model.MasqueradeAlways)
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
	return rules, slices.Concat(never, unlessPod, always, markedToNodePorts)
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
func (p *plan) nodePortsRules() (rules, marked []string) {
	always, never := p.into(inNAT, true, model.MasqueradeAlways), p.into(inNAT, true, model.MasqueradeNever)
	if len(always)+len(never) == 0 {
		return nil, nil
	}
	rules = slices.Concat(p.config.notLocalhost(), always)
	marked = slices.Concat(rules, never)
	if len(never) > 0 {
		rules = append(append(rules, markText(p.config.mark, false)), never...)
	}
	return rules, marked
}

// forwardRules accept service traffic even if the policy of FORWARD is to drop, as kube-proxy does.
func (c *config) forwardRules() []string {
	var rules []string
	if c.dropInvalid {
		// What connection tracking does not know keeps the address that translation should have changed: its receiver
		// would end the connection (S34).
		rules = append(rules, "-m conntrack --ctstate INVALID "+c.count(invalidDropped)+"-j DROP")
	}
	return append(rules,
		markMatch(c.mark)+"-m conntrack --ctstate DNAT "+comment("to be masqueraded")+"-j ACCEPT",
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
}

// localnetRules keep other machines from reaching loopback addresses, which route_localnet opens (S36).
func (c *config) localnetRules() []string {
	if !c.localhostNodePorts {
		return nil
	}
	return []string{"! -s 127.0.0.0/8 -d 127.0.0.0/8 " + comment("loopback addresses are not for others") +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"}
}

func jump(chain, match, text, to string) dp.BuiltinRule {
	return dp.BuiltinRule{Chain: chain, Rule: match + comment("kube-proxy-lib: "+text) + "-j " + to}
}

// filterJumps are the jumps from built-in chains of table filter.
func (c *config) filterJumps(healthChecks bool) []dp.BuiltinRule {
	const isNew = "-m conntrack --ctstate NEW "
	const refuse = "services without endpoints"
	jumps := []dp.BuiltinRule{
		jump("INPUT", isNew, refuse, refuseChain),
		jump("FORWARD", isNew, refuse, refuseChain),
		jump("OUTPUT", isNew, refuse, refuseChain),
		jump("FORWARD", "", "services", forwardChain),
	}
	if c.localhostNodePorts {
		const loopback = "node ports on loopback addresses"
		jumps = append(jumps, jump("INPUT", "", loopback, localnetChain), jump("OUTPUT", "", loopback, localnetChain))
	}
	if healthChecks {
		for _, m := range c.nodePorts { // packets in INPUT are for an address of the node
			jumps = append(jumps, jump("INPUT", m+"-p tcp ", "health checks", healthCheckChain))
		}
	}
	return jumps
}
