package frontend

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// nodePorts makes owners also settle contests between a node port and an external IP, VIP or cluster IP of the same
// port number that is one of the node's addresses that serve node ports (S59). There the port that owns the node port
// asks for the address, too, with a claim of kind NodePort. Such a claim exists only while another port asks for the
// address, and creates no frontend: whether or not it wins, the node port is served on all other addresses.
type nodePorts struct {
	list []netip.Addr // as given
	// addresses are those on which node ports are served; added are those that the present wave has added.
	addresses, added map[netip.Addr]bool
	// asked are the addresses that ports ask for, by node port.
	asked map[Key][]netip.Addr
	// claims has the ports that ask for an address because they own the node port.
	claims map[Key]nodePortClaim
	// changed are the addresses whose claims the present wave may have changed. passed has the node ports whose owner
	// it has changed, with the previous owner: nil if there was none, or if its service is gone.
	changed map[Key]bool
	passed  map[Key]*port
}

// nodePortClaim is the claim of a port to an address, with its service as of then.
type nodePortClaim struct {
	port    *port
	service *model.Service
}

// isOf reports whether the claim is of a port as it is now, and not of another service of that name.
func (c nodePortClaim) isOf(p *port) bool {
	return c.port == p && (p == nil || p.service.object != nil && isSame(c.service, p.service.object))
}

// nodePort returns the node port of the same number.
func (k Key) nodePort() Key { return Key{Port: k.Port, Protocol: k.Protocol} }

// noteAsked notes that claims to an address change.
func (n *nodePorts) noteAsked(k Key) {
	if len(n.addresses) > 0 && n.addresses[k.Addr] {
		n.changed[k] = true
	}
}

// noteOwner notes that the owner of a node port changes.
func (n *nodePorts) noteOwner(k Key, before *port) {
	if _, noted := n.passed[k]; noted || len(n.addresses) == 0 || !k.IsNodePort() {
		return
	}
	if before != nil && before.service.object == nil {
		before = nil
	}
	n.passed[k] = before
}

// setAddresses sets the addresses on which node ports are served. If there are new ones, it checks all frontends.
func (o *owners) setAddresses(list []netip.Addr) {
	n := &o.nodePorts
	if slices.Equal(n.list, list) {
		return
	}
	n.list = slices.Clone(list)
	now := map[netip.Addr]bool{}
	for _, a := range list {
		if now[a] = true; !n.addresses[a] {
			n.added[a] = true
		}
	}
	for k, addrs := range n.asked {
		for _, a := range addrs {
			if !now[a] {
				n.changed[Key{a, k.Port, k.Protocol}] = true
			}
		}
	}
	if n.addresses = now; len(n.added) == 0 {
		return
	}
	for k := range o.byKey {
		if n.added[k.Addr] {
			n.changed[k] = true
		}
	}
}

// claimNodePorts brings the claims of node ports up to date. The owners of node ports are settled.
func (o *owners) claimNodePorts() {
	n := &o.nodePorts
	for k := range n.passed {
		for _, a := range n.asked[k] {
			n.changed[Key{a, k.Port, k.Protocol}] = true
		}
	}
	for k := range n.changed {
		np := k.nodePort()
		next, before := o.owner(np), n.claims[k]
		asked, own := o.byKey[k].asked(next)
		asked = asked && n.addresses[k.Addr]
		served, passed := n.passed[np] // on this address, before this wave
		if !passed {
			served = next
		}
		if isNew := n.setAsked(k, asked); !isNew || n.added[k.Addr] {
			served = nil
		}
		if !asked || own {
			next = nil
		}
		fr := Frontend{Key: k, Kind: NodePort}
		if before.isOf(next) {
			next = nil // it stays
		} else if p := before.port; p != nil {
			o.withdraw(p, fr, before.isOf(p))
			delete(n.claims, k)
		}
		if next != nil {
			n.claims[k] = nodePortClaim{next, next.service.object}
		}
		switch {
		case next != nil && next == served && !passed:
			o.precede(next, fr)
			continue
		case next != nil:
			o.add(next, fr)
		}
		if served != nil {
			o.unsettle(k, o.byKey[k]).formerOwner = served.service
		}
	}
	if len(n.changed) > 0 || len(n.passed) > 0 || len(n.added) > 0 { // most waves change none of these
		n.changed, n.passed, n.added = map[Key]bool{}, map[Key]*port{}, map[netip.Addr]bool{}
	}
}

// setAsked notes whether a port asks for an address, and reports whether none did before.
func (n *nodePorts) setAsked(k Key, asked bool) (isNew bool) {
	np := k.nodePort()
	list := n.asked[np]
	i := slices.Index(list, k.Addr)
	switch {
	case asked && i < 0:
		n.asked[np] = append(list, k.Addr)
	case !asked && i >= 0:
		if n.asked[np] = slices.Delete(list, i, i+1); len(list) == 1 {
			delete(n.asked, np)
		}
	}
	return asked && i < 0
}

// asked reports whether a port asks for an address itself, and whether p does.
func (h holder) asked(p *port) (any, own bool) {
	note := func(c claim) {
		if c.port != nil && c.kind != NodePort {
			any, own = true, own || c.port == p
		}
	}
	note(h.claim)
	if h.contest != nil {
		for _, r := range h.contest.rivals {
			if !r.gone {
				note(r.claim)
			}
		}
	}
	return any, own
}

// precede adds the claim of a node port that was served on an address until ports asked for it in this wave.
func (o *owners) precede(p *port, fr Frontend) {
	h := o.byKey[fr.Key]
	c := o.unsettle(fr.Key, h)
	if h.port != nil {
		h.port.lose(h.frontend(fr.Key))
		c.add(h.claim)
	}
	c.before = p
	o.byKey[fr.Key] = holder{claim{port: p, kind: fr.Kind, wave: o.wave - 1}, c}
}
