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
	hash    string            // ends the names of its chains
	traffic [numKinds]traffic // of the frontends of each kind
	chains  []ownChain
	sets    [2]ownSet // that of each of frontend.RouteSets
	// sources is its list of source ranges, if that has chains, and shared has the shared chains that the port uses.
	sources *sources
	shared  []sharedChain
}

func newPort(name model.PortName) *port { return &port{name: name, hash: hash(name)} }

// chain names a chain for its purpose. Names may have 28 characters.
func (p *port) chain(purpose string) string { return chainPrefix + purpose + "-" + p.hash }

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

// setPort updates the chains and trees for a service port. Unchanged parts cost nothing. A refused port is in none.
func (p *plan) setPort(c *frontend.PortChange) {
	name := c.Name()
	none := &port{name: name}
	old, next := cmp.Or(p.ports[name], none), none
	if c.After != nil && c.Refused() == nil {
		next = p.config.render(c)
		p.ports[name] = next
	} else {
		delete(p.ports, name)
	}
	for _, own := range next.chains {
		p.tables[own.table].set(own.name, own.rules, name)
	}
	for _, own := range old.chains {
		if !next.has(own.name) {
			p.tables[own.table].drop(own.name)
		}
	}
	p.useSources(old, next)
	for i := range next.sets {
		p.setSet(c, i, old, next)
	}
	p.setFrontends(c, old, next)
}

// has reports whether a port has a chain of that name, apart from those of its sets.
func (p *port) has(chain string) bool {
	return slices.ContainsFunc(p.chains, func(own ownChain) bool { return own.name == chain })
}

// setFrontends updates the trees: for the frontends that have changed, and for those whose traffic is treated
// differently from now on.
func (p *plan) setFrontends(c *frontend.PortChange, old, next *port) {
	if c.Before != nil {
		for ch := range c.FrontendChanges() {
			var before, after traffic
			if ch.Before != nil {
				before = old.traffic[ch.Before.Kind]
			}
			if ch.After != nil {
				after = next.traffic[ch.After.Kind]
			}
			p.setFrontend(ch.Key(), next.name, before, after)
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
			p.setFrontend(fr.Key, next.name, old.traffic[fr.Kind], next.traffic[fr.Kind])
		}
	}
}

// setFrontend updates the trees for a frontend of a service port.
func (p *plan) setFrontend(k frontend.Key, owner model.PortName, before, after traffic) {
	for i := range p.tables {
		var old, next *tree
		if !before.to[i].isZero() {
			old = p.tree(i, k, before.masquerade)
		}
		if !after.to[i].isZero() {
			next = p.tree(i, k, after.masquerade)
			next.set(&entry{key: k, owner: owner, to: after.to[i]})
		}
		if old != nil && old != next {
			old.remove(k, owner)
		}
	}
}

// maxAffinity is 49 days, in seconds: the kernel converts them to ticks, up to 1,000 in a second, in 32 bits.
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
