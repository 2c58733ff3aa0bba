package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// port is a service port in one family, as it is planned.
type port struct {
	name    model.PortName
	traffic [numKinds]traffic // of the frontends of each kind
	chains  []ownChain
	sets    [2]ownSet // that of each of frontend.RouteSets
}

// numKinds is how many kinds of frontends there are.
const numKinds = frontend.NodePort + 1

// traffic is what happens to the traffic of a frontend. The zero value leaves it alone.
type traffic struct {
	masquerade model.Masquerade // in table nat, as in treeKey
	to         [2]target        // in each table; zero: nothing
}

func (t traffic) equal(o traffic) bool {
	return t.masquerade == o.masquerade && t.to[inNAT].equal(o.to[inNAT]) && t.to[inFilter].equal(o.to[inFilter])
}

// ownChain is a chain that no other service port uses.
type ownChain struct {
	table int
	name  string
	rules []string
}

// planPort updates the chains and trees for a service port. Unchanged parts cost nothing.
func (f *family) planPort(c *frontend.PortChange) {
	name := c.Name()
	none := &port{name: name}
	old, next := cmp.Or(f.ports[name], none), none
	if _, leftOut := f.leftOut[name]; c.After != nil && !leftOut {
		next = f.config.render(c)
		f.ports[name] = next
	} else {
		delete(f.ports, name)
	}
	f.planOwnChains(c, old, next)
	f.planFrontends(c, old, next)
}

// planOwnChains updates the chains that only this service port uses.
func (f *family) planOwnChains(c *frontend.PortChange, old, next *port) {
	for _, own := range next.chains {
		f.tables()[own.table].set(own.name, own.rules, next.name)
	}
	for _, own := range old.chains {
		if !next.has(own.name) {
			f.tables()[own.table].drop(own.name)
		}
	}
	for i := range next.sets {
		f.planSet(c, next.name, i, old.sets[i], next.sets[i])
	}
}

// has reports whether a port has a chain of that name, apart from those of its sets.
func (p *port) has(chain string) bool {
	return slices.ContainsFunc(p.chains, func(own ownChain) bool { return own.name == chain })
}

// planFrontends updates the trees: for the frontends that have changed, and for those whose traffic is treated
// differently from now on.
func (f *family) planFrontends(c *frontend.PortChange, old, next *port) {
	if c.Before != nil {
		for ch := range c.FrontendChanges() {
			var before, after traffic
			if ch.Before != nil {
				before = old.traffic[ch.Before.Kind]
			}
			if ch.After != nil {
				after = next.traffic[ch.After.Kind]
			}
			f.setFrontend(ch.Key(), next.name, before, after)
		}
	}
	var changed [numKinds]bool
	for i := range changed {
		changed[i] = !old.traffic[i].equal(next.traffic[i])
	}
	if changed == [numKinds]bool{} {
		return
	}
	for fr := range c.Frontends() {
		if changed[fr.Kind] {
			f.setFrontend(fr.Key, next.name, old.traffic[fr.Kind], next.traffic[fr.Kind])
		}
	}
}

// setFrontend updates the trees for a frontend of a service port.
func (f *family) setFrontend(k frontend.Key, owner model.PortName, before, after traffic) {
	for i, to := range after.to {
		old, next := f.treeOf(k, i, before), f.treeOf(k, i, after)
		if !before.to[i].isZero() && (to.isZero() || old != next) {
			old.remove(k, owner)
		}
		if !to.isZero() {
			next.set(&entry{key: k, owner: owner, to: to})
		}
	}
}

// maxAffinity is 49 days, in seconds: the kernel multiplies them by its ticks, up to 1,000 in one, in 32 bits.
const maxAffinity = 1 << 32 / 1000

// affinityRules send a client to its previous endpoint, or to a random one if it has none (S32). Each endpoint has a
// list in /proc/net/xt_recent of the clients it was chosen for, and when.
func (c *config) affinityRules(p *frontend.Port, endpoints []netip.AddrPort) []string {
	match, note := protocolMatch(p.Name.Protocol), comment(portComment(p.Name))
	mask := "255.255.255.255"
	if c.family == model.IPv6 {
		mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	seconds := strconv.FormatInt(min(int64(p.AffinityTimeout/time.Second), maxAffinity), 10)
	rules := make([]string, 0, 2*len(endpoints))
	lists := make([]string, len(endpoints))
	for i, ep := range endpoints {
		lists[i] = "--name " + chainPrefix + hash(p.Name, ep.String()) + " --mask " + mask + " --rsource " + dnat(ep)
		rules = append(rules, match+note+"-m recent --update --seconds "+seconds+" --reap "+lists[i])
		note = ""
	}
	for i := range endpoints {
		rules = append(rules, match+chance(1, len(endpoints)-i)+"-m recent --set "+lists[i])
	}
	return rules
}
