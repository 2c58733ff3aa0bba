package iptables

import (
	"net/netip"
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// chainPrefix is the prefix of the names of all our chains, and of no others.
const chainPrefix = "KPL-"

// The chains that are always there.
const (
	servicesChain    = chainPrefix + "SERVICES"
	nodePortsChain   = chainPrefix + "NODEPORTS"
	markedChain      = chainPrefix + "MARKED"           // instead of SERVICES, for packets that others have marked
	markedNodePorts  = chainPrefix + "MARKED-NODEPORTS" // and instead of NODEPORTS
	postroutingChain = chainPrefix + "POSTROUTING"
	masqueradeChain  = chainPrefix + "MASQUERADE"
	refuseChain      = chainPrefix + "REFUSE"
	refuseNodePorts  = chainPrefix + "REFUSE-NODEPORTS"
	forwardChain     = chainPrefix + "FORWARD"
	localnetChain    = chainPrefix + "LOCALNET"
	healthCheckChain = chainPrefix + "HEALTHCHECK" // while any service has a health check
)

// config is what rules depend on besides services: parts of the node, the options and the machine.
type config struct {
	family    model.Family
	mark      uint32
	localPods model.LocalPods
	// nodePorts are matches for those addresses that serve node ports, for packets to addresses of the node; "" matches
	// all of these.
	nodePorts          []string
	localhostNodePorts bool
	lastSources        *sources
	dropInvalid        bool // S34
	counts             bool // rules count packets, with the kernel's counters
}

func newConfig(f dp.Features, b *Backend, node *model.Node) *config {
	return &config{family: f.Family, mark: b.options.MasqueradeMark, dropInvalid: b.kernel.dropInvalid,
		localPods: node.LocalPods.Of(f.Family), localhostNodePorts: b.kernel.localnet && f.Family == model.IPv4,
		nodePorts: nodePortMatches(f.Family, b.options.NodePortAddresses, node)}
}

func nodePortMatches(f model.Family, choice nodeaddr.Choice, node *model.Node) []string {
	if choice.All(f) {
		return []string{""}
	}
	cidrs := slices.Clone(choice.CIDRs)
	for _, ip := range choice.Of(nil, node).IPs { // the primary addresses
		cidrs = append(cidrs, netip.PrefixFrom(ip, ip.BitLen()))
	}
	var matches []string
	for _, p := range model.PrefixesOf(f, cidrs) {
		matches = append(matches, "-d "+prefixText(p)+" ")
	}
	return matches
}

// isLocalPod returns matches, any one of which means that the source is a pod of this node (S30). "" matches all.
func (c *config) isLocalPod() []string {
	switch l := c.localPods; {
	case l.Bridge != "":
		return []string{"-i " + l.Bridge + " "}
	case l.InterfacePrefix != "":
		return []string{"-i " + l.InterfacePrefix + "+ "}
	}
	var matches []string
	for _, p := range c.localPods.CIDRs {
		if p.Bits() == 0 {
			return []string{""}
		}
		matches = append(matches, sourceMatch(p))
	}
	return matches
}

// markUnlessLocalPod returns rules that mark packets that do not come from a pod of this node; none if all packets do.
func (c *config) markUnlessLocalPod() []string {
	const note = "pods of this node excepted"
	matches := c.isLocalPod()
	if len(matches) == 1 {
		if matches[0] == "" {
			return nil
		}
		return []string{"! " + matches[0] + comment(note) + markText(c.mark, true)}
	}
	rules := []string{comment(note) + markText(c.mark, true)}
	for _, m := range matches {
		rules = append(rules, m+markText(c.mark, false))
	}
	return rules
}
