package iptables

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// maxInline is how many endpoints a destination may have in a chain that it shares with others. Those that have more get a
// chain of their own, so that the others' packets do not have to pass by.
const maxInline = 16

// port is a service port in one family, as it is to be. It does not change. Its endpoints are in their places.
type port struct {
	serviceport.Port
	fronts []front // one for each destination
	chains []ownChain
}

// front is a destination by which traffic to a service port comes, and what happens to it.
type front struct {
	key        key
	kind       serviceport.Kind
	masquerade masq   // which of the trees in table nat it is in
	to         target // in table nat; zero: nothing
	refuse     target // in table filter; zero: nothing
}

// ownChain is a chain that no other service port uses.
type ownChain struct {
	filter bool // or else in table nat
	name   string
	rules  []string
}

// masq says whose source address is translated. There is a tree for each.
type masq uint8

const (
	masqNever        masq = iota // or the chains that the tree leads to see to it
	masqUnlessPod                // that of all but this node's pods
	masqAlways                   // everybody's
	numMasquerades   = 3
	recentNamePrefix = "KPL-"
)

func masqOf(m model.Masquerade) masq {
	switch m {
	case model.MasqueradeAlways:
		return masqAlways
	case model.MasqueradeUnlessLocalPod:
		return masqUnlessPod
	}
	return masqNever
}

// newPorts returns the ports of a service in one family, without those that nothing leads to and without bad input. Ports that
// were there before are olds.
func (c *config) newPorts(ctx context.Context, d *described, olds []*port) []*port {
	var ports []*port
	node := serviceport.Node{Family: c.family, LocalPods: c.localPods.CIDRs}
	node.Each(&sink.ServiceEntry{Service: d.service, Endpoints: d.endpoints}, func(sp serviceport.Port) {
		p := &port{Port: sp, fronts: make([]front, len(sp.Destinations))}
		if old := portNamed(olds, p.Name); old != nil {
			p.Cluster, p.Local = inPlace(old.Cluster, p.Cluster), inPlace(old.Local, p.Local)
		}
		for i, to := range p.Destinations {
			p.fronts[i] = front{key: key{to.Addr, to.Port, p.Name.Protocol}, kind: to.Kind}
		}
		(&renderer{config: c, port: p}).render()
		ports = append(ports, p)
	}, serviceport.LogSkipped(ctx))
	return ports
}

func portNamed(ports []*port, name model.PortName) *port {
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// inPlace reorders endpoints so that those that were there before keep their places, as far as there are so many, because
// each place may be a chain that changes.
func inPlace(before, now []netip.AddrPort) []netip.AddrPort {
	if len(before) == 0 || slices.Equal(before, now) {
		return now
	}
	left := make(map[netip.AddrPort]bool, len(now))
	for _, ep := range now {
		left[ep] = true
	}
	list := make([]netip.AddrPort, len(now))
	for i, ep := range before[:min(len(before), len(now))] {
		if left[ep] {
			list[i] = ep
			delete(left, ep)
		}
	}
	free := 0
	for _, ep := range now {
		if left[ep] {
			for list[free].IsValid() {
				free++
			}
			list[free] = ep
		}
	}
	return list
}

// affinityName is the name of the list of an endpoint's clients, in /proc/net/xt_recent.
func (p *port) affinityName(ep netip.AddrPort) string {
	n := p.Name
	return recentNamePrefix + hash(n.Service.Namespace, n.Service.Name, n.Port, n.Protocol.String(), ep.String())
}

// affinityChain returns rules that send a client to the endpoint that it was sent to before, if it was, and otherwise to one
// at random (S32). Either way it is noted when it was here.
func (p *port) affinityChain(c *config, endpoints []netip.AddrPort) []string {
	match := "-p " + protocolText(p.Name.Protocol)
	list := func(ep netip.AddrPort) string {
		mask := "255.255.255.255"
		if c.family == model.IPv6 {
			mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
		}
		return " --name " + p.affinityName(ep) + " --mask " + mask + " --rsource"
	}
	seconds := strconv.FormatInt(int64(p.AffinityTimeout/time.Second), 10)
	rules := make([]string, 0, 2*len(endpoints))
	for i, ep := range endpoints {
		m := match
		if i == 0 {
			m += comment(portComment(p.Name))
		}
		rules = append(rules, m+" -m recent --update --seconds "+seconds+" --reap"+list(ep)+dnat(ep))
	}
	for i, ep := range endpoints {
		m := match
		if left := len(endpoints) - i; left > 1 {
			m += " -m statistic --mode random --probability " + dp.Probability(left)
		}
		rules = append(rules, m+" -m recent --set"+list(ep)+dnat(ep))
	}
	return rules
}
