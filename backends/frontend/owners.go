package frontend

import (
	"cmp"
	"maps"
	"slices"
)

// owners knows which service port has each key (S59). If two services list the same external IP and port:
//
//  1. A cluster IP comes first: the API server gives each to one service only, while any service may list it as an
//     external IP.
//  2. The service port that has the key keeps it for as long as it asks for it. Then another port of its service comes
//     first: a port that is renamed gives nothing up.
//  3. Among newcomers, and that is everybody after a restart, the oldest service gets it; then the lower kind; then the
//     first by name. A service of unknown age is younger than all others.
//
// The others get it when that one goes.
type owners struct {
	byKey map[Key]claim
	// contested lists the ports that ask for a key, for keys that several asked for when the present wave began or
	// later in it.
	contested map[Key][]claim
	// unsettled are the contested keys that a port began or ceased to ask for in the present wave, with the service
	// whose port had the key and no longer asks for it, if there is one.
	unsettled map[Key]*service
	wave      uint64
}

// claim is a service port that asks for a key.
type claim struct {
	port       *port
	kind       Kind
	restricted bool
	wave       uint64 // in which it came
	// told is the owner named when the loss was reported.
	told *port
}

func (c claim) frontend(k Key) Frontend {
	return Frontend{Key: k, Kind: c.kind, Restricted: c.restricted}
}

// add lets a port ask for a frontend.
func (o *owners) add(p *port, fr Frontend) {
	c := claim{port: p, kind: fr.Kind, restricted: fr.Restricted, wave: o.wave}
	owner, owned := o.byKey[fr.Key]
	if !owned {
		p.gain(fr)
		o.byKey[fr.Key] = c
		return
	}
	list := o.contested[fr.Key]
	if list == nil {
		list = []claim{owner}
	}
	o.contested[fr.Key] = append(list, c)
	o.unsettle(fr.Key, nil)
}

// unsettle marks a key, so that settle decides again who gets it.
func (o *owners) unsettle(k Key, before *service) {
	o.unsettled[k] = cmp.Or(before, o.unsettled[k])
}

// remove withdraws a port's request for a frontend.
func (o *owners) remove(p *port, k Key) {
	owner := o.byKey[k]
	if owner.port == p {
		p.lose(owner.frontend(k))
	}
	list := o.contested[k]
	if list == nil {
		delete(o.byKey, k)
		return
	}
	o.contested[k] = slices.DeleteFunc(list, func(c claim) bool { return c.port == p })
	var heirs *service // none if the service itself goes, even if another one of its name comes
	if owner.port == p {
		o.byKey[k] = claim{} // until it is settled
		if p.service.object != nil {
			heirs = p.service
		}
	}
	o.unsettle(k, heirs)
}

// update changes the kind or restriction of a frontend that a port has asked for.
func (o *owners) update(p *port, fr Frontend) {
	if c := o.byKey[fr.Key]; c.port == p {
		p.lose(c.frontend(fr.Key))
		p.gain(fr)
		c.kind, c.restricted = fr.Kind, fr.Restricted
		o.byKey[fr.Key] = c
	}
	for i := range o.contested[fr.Key] {
		if c := &o.contested[fr.Key][i]; c.port == p {
			c.kind, c.restricted = fr.Kind, fr.Restricted
			o.unsettle(fr.Key, nil)
		}
	}
}

// settle ends a wave: every contested key gets its owner. It reports each pair of loser and owner once.
func (o *owners) settle(report func(loser, owner *port, k Key)) {
	for _, k := range slices.SortedFunc(maps.Keys(o.unsettled), Key.Compare) {
		list := o.contested[k]
		if len(list) == 0 {
			delete(o.byKey, k)
			delete(o.contested, k)
			continue
		}
		before := o.byKey[k]
		after := o.choose(list, before.port, o.unsettled[k])
		if before.port != after.port {
			if before.port != nil {
				before.port.lose(before.frontend(k))
			}
			after.port.gain(after.frontend(k))
		}
		after.told = nil
		o.byKey[k] = after
		for i := range list {
			c := &list[i]
			if c.port == after.port {
				c.told = nil
			} else if c.told != after.port {
				c.told = after.port
				report(c.port, after.port, k)
			}
		}
		if len(list) == 1 {
			delete(o.contested, k)
		}
	}
	o.unsettled = map[Key]*service{}
	o.wave++
}

// choose returns the claim that gets a key. before is the port that has the key now, and heirs the service of the port
// that had it; both may be nil.
func (o *owners) choose(list []claim, before *port, heirs *service) claim {
	return slices.MinFunc(list, func(a, b claim) int {
		keeps := func(c claim) bool { return c.port == before && c.wave < o.wave }
		return cmp.Or(
			first(a.kind == ClusterIP, b.kind == ClusterIP),
			first(keeps(a), keeps(b)),
			first(a.port.service == heirs, b.port.service == heirs),
			a.port.service.compareAge(b.port.service),
			cmp.Compare(a.kind, b.kind),
			a.port.name.Compare(b.port.name))
	})
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
