package frontend

import (
	"cmp"
	"net/netip"
	"slices"
)

// owners knows which service port has each key (S59). If two services list the same external IP and port:
//
//  1. A cluster IP comes first: the API server gives each to one service only, while any service may list it as an
//     external IP.
//  2. The service port that has the key keeps it for as long as it asks for it. Then another port of its service comes
//     first: a port that is renamed gives nothing up.
//  3. Among newcomers, which after a restart are all ports, the oldest service gets it; then the lower kind; then the
//     first by name. A service of unknown age is younger than all others.
//
// The next one gets the key when its owner gives it up. The cost of asking for a key, giving it up and passing it on
// does not grow with the number of ports that wait for it, except that each wave that changes their list copies it.
type owners struct {
	byKey map[Key]holder
	// unsettled are the contests that began, or changed, in the present wave.
	unsettled []*contest
	wave      uint64
	compared  int // comparisons of claims, since the start
	nodePorts nodePorts
	reporter  *reporter
	contests  func(k Key, owner *port) // of Table.ReportContests; nil without
	health    *healthPorts             // of all families
}

// claim is a service port that asks for a key.
type claim struct {
	port       *port
	kind       Kind
	restricted bool
	wave       uint64 // in which it was added
}

func (c claim) frontend(k Key) Frontend {
	return Frontend{Key: k, Kind: c.kind, Restricted: c.restricted}
}

func newOwners(health *healthPorts) owners {
	return owners{health: health, byKey: map[Key]holder{}, nodePorts: nodePorts{added: map[netip.Addr]bool{},
		asked: map[Key][]netip.Addr{}, claims: map[Key]nodePortClaim{}, changed: map[Key]bool{},
		passed: map[Key]*port{}}}
}

// gain gives a port the frontend that it asks for. The claim of a node port to an address makes none.
func (o *owners) gain(k Key, c claim) {
	o.health.touch(k)
	if o.nodePorts.noteOwner(k, nil); c.kind != NodePort || k.IsNodePort() {
		c.port.gain(c.frontend(k))
	}
}

// lose takes the frontend of a claim away from its port.
func (o *owners) lose(k Key, c claim) {
	o.health.touch(k)
	if o.nodePorts.noteOwner(k, c.port); c.kind != NodePort || k.IsNodePort() {
		c.port.lose(c.frontend(k))
	}
}

// holder is the claim that has a key; its port is nil from when the owner leaves until the wave is settled.
type holder struct {
	claim
	contest *contest // nil if no other asks for the key, nor did in the present wave
}

// contest is a key that several ports ask for.
type contest struct {
	key    Key
	rivals []rival // those that do not have the key
	sorted int     // how many of them are sorted; those that follow are new
	told   *port   // the owner that was reported to owners.contests, if any
	// The rest is about the present wave.
	before      *port    // the owner when it began, if there was one
	formerOwner *service // the service whose port had the key and gave it up
	unsettled   bool
	compared    int // comparisons of claims
}

// rival is a claim to a key that another port has.
type rival struct {
	claim
	age  int64 // of its service
	gone bool  // in the present wave
	// updated: its kind or restriction has changed in the present wave.
	updated bool
}

func newRival(c claim) rival { return rival{claim: c, age: c.port.service.age} }

// compare orders claims: the one that comes first gets the key.
func (c *contest) compare(a, b rival) int {
	c.compared++
	return a.compare(b)
}

// compare orders claims: the one that comes first gets the key.
func (r rival) compare(o rival) int {
	return cmp.Or(first(r.kind == ClusterIP, o.kind == ClusterIP), cmp.Compare(r.age, o.age),
		cmp.Compare(r.kind, o.kind), r.port.name.Compare(o.port.name))
}

// owner returns the port that has a frontend, or nil.
func (o *owners) owner(k Key) *port {
	h := o.byKey[k]
	if h.kind == NodePort && !k.IsNodePort() {
		return nil
	}
	return h.port
}

// add records that a port asks for a frontend.
func (o *owners) add(p *port, fr Frontend) {
	o.nodePorts.noteAsked(fr.Key)
	c := claim{port: p, kind: fr.Kind, restricted: fr.Restricted, wave: o.wave}
	h, asked := o.byKey[fr.Key]
	if !asked {
		o.gain(fr.Key, c)
		o.byKey[fr.Key] = holder{claim: c}
		return
	}
	o.unsettle(fr.Key, h).add(c)
}

// unsettle makes settle decide again who gets a key.
func (o *owners) unsettle(k Key, h holder) *contest {
	if h.contest == nil {
		h.contest = &contest{key: k}
		o.byKey[k] = h
	}
	if c := h.contest; !c.unsettled {
		if c.unsettled = true; h.wave < o.wave {
			c.before = h.port
		}
		o.unsettled = append(o.unsettled, c)
	}
	return h.contest
}

// remove withdraws a port's request for a frontend. Other ports of its service get the key first, unless the service
// itself is deleted.
func (o *owners) remove(p *port, fr Frontend) { o.withdraw(p, fr, p.service.object != nil) }

func (o *owners) withdraw(p *port, fr Frontend, siblingsFirst bool) {
	k := fr.Key
	o.nodePorts.noteAsked(k)
	h := o.byKey[k]
	if h.port != p || h.kind != fr.Kind {
		o.unsettle(k, h).find(p, fr.Kind).gone = true
		return
	}
	o.lose(k, h.claim)
	if !siblingsFirst && h.contest == nil {
		delete(o.byKey, k)
		return
	}
	c := o.unsettle(k, h)
	if siblingsFirst && h.wave < o.wave {
		c.formerOwner = p.service
	}
	o.byKey[k] = holder{contest: c}
}

// update changes the kind or restriction of a frontend that a port has asked for.
func (o *owners) update(p *port, before, after Frontend) {
	k := after.Key
	h := o.byKey[k]
	if h.port != p || h.kind != before.Kind {
		c := o.unsettle(k, h)
		r := c.find(p, before.Kind)
		next := r.claim
		r.gone = true
		next.kind, next.restricted = after.Kind, after.Restricted
		c.add(next)
		c.rivals[len(c.rivals)-1].updated = true
		return
	}
	o.lose(k, h.claim)
	h.kind, h.restricted = after.Kind, after.Restricted
	o.gain(k, h.claim)
	if o.byKey[k] = h; h.contest != nil {
		o.unsettle(k, h)
	}
}

// maxTold is how many of the ports that wait for a key are reported when its owner has changed.
const maxTold = 8

// settle ends a wave: every contested key gets its owner. It reports newcomers that do not get the key, and the port
// that loses it; if the owner has changed, it also reports the first of the ports that wait.
func (o *owners) settle(report func(loser, owner *port, k Key)) {
	var ofNodePorts, others []*contest
	for _, c := range o.unsettled {
		if c.key.IsNodePort() {
			ofNodePorts = append(ofNodePorts, c)
		} else {
			others = append(others, c)
		}
	}
	o.decide(ofNodePorts, report)
	o.unsettled = others
	o.claimNodePorts()
	o.decide(o.unsettled, report)
	o.unsettled = nil
	o.wave++
}

// decide settles contests.
func (o *owners) decide(list []*contest, report func(loser, owner *port, k Key)) {
	slices.SortFunc(list, func(a, b *contest) int { return a.key.Compare(b.key) })
	for _, c := range list {
		k := c.key
		h := o.byKey[k]
		o.withdrawn(c)
		c.tidy()
		lost := h.port
		if i := c.nextOwner(h, o.wave); i >= 0 {
			next := c.rivals[i].claim
			c.rivals = slices.Delete(c.rivals, i, i+1)
			if lost != nil {
				o.lose(k, h.claim)
				c.insert(h.claim)
			}
			o.gain(k, next)
			h.claim = next
			o.reporter.found(next.port, k)
		}
		c.sorted = len(c.rivals)
		for i, r := range c.rivals {
			if r.wave == o.wave || r.updated || r.port == lost {
				c.rivals[i].updated = false
				o.reporter.lost(r.port, k)
			}
			if r.wave == o.wave || r.port == lost || i < maxTold && h.port != c.before {
				report(r.port, h.port, k)
			}
		}
		o.compared += c.compared
		o.reportContest(c, h.port)
		if c.compared, c.before, c.formerOwner, c.unsettled = 0, nil, nil, false; len(c.rivals) == 0 {
			h.contest = nil
		}
		if o.byKey[k] = h; h.port == nil {
			delete(o.byKey, k)
		}
	}
}

// reportContest reports who owns a contested key, or that it is no longer contested, unless that was reported before.
func (o *owners) reportContest(c *contest, owner *port) {
	if len(c.rivals) == 0 {
		owner = nil
	}
	if o.contests != nil && c.told != owner {
		c.told = owner
		o.contests(c.key, owner)
	}
}

// withdrawn tells the reporter about claims that are gone.
func (o *owners) withdrawn(c *contest) {
	if o.reporter == nil {
		return
	}
	for _, r := range c.rivals {
		if r.gone {
			o.reporter.found(r.port, c.key)
		}
	}
}

// add adds a claim.
func (c *contest) add(x claim) { c.rivals = append(c.rivals, newRival(x)) }

// find returns the claim of a port by an address of a kind.
func (c *contest) find(p *port, k Kind) *rival {
	old := c.rivals[:c.sorted]
	x := newRival(claim{port: p, kind: k})
	if i, found := slices.BinarySearchFunc(old, x, c.compare); found && !old[i].gone {
		return &old[i]
	}
	for i := range c.rivals { // it is new, or belongs to another service now
		c.compared++
		if r := &c.rivals[i]; r.port == p && r.kind == k && !r.gone {
			return r
		}
	}
	return &rival{}
}

// tidy removes the claims that are gone, and sorts the others.
func (c *contest) tidy() {
	isNew := len(c.rivals) > c.sorted
	c.rivals = slices.DeleteFunc(c.rivals, func(r rival) bool { return r.gone })
	if isNew {
		slices.SortFunc(c.rivals, c.compare)
	}
}

// insert adds a claim in its place.
func (c *contest) insert(x claim) {
	r := newRival(x)
	i, _ := slices.BinarySearchFunc(c.rivals, r, c.compare)
	c.rivals = slices.Insert(c.rivals, i, r)
}

// nextOwner returns the index of the claim that gets the key, -1 if the owner keeps it or there is none.
func (c *contest) nextOwner(h holder, wave uint64) int {
	if len(c.rivals) == 0 {
		return -1
	}
	preferred, isClusterIP := c.formerOwner, c.rivals[0].kind == ClusterIP
	if h.port != nil && h.wave < wave {
		if h.kind == ClusterIP || !isClusterIP {
			return -1
		}
		preferred = h.port.service
	}
	i := 0
	if preferred != nil {
		i = max(0, slices.IndexFunc(c.rivals, func(r rival) bool {
			return r.port.service == preferred && (r.kind == ClusterIP) == isClusterIP
		}))
	}
	r := c.rivals[i]
	if h.port != nil && cmp.Or(first(h.kind == ClusterIP, r.kind == ClusterIP),
		first(h.port.service == preferred, r.port.service == preferred), newRival(h.claim).compare(r)) < 0 {
		return -1
	}
	return i
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
