package frontend

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
)

// budget has the limits, which both families share.
type budget struct {
	Limits
	// due has the tenants that may exceed a limit, or did.
	due       map[*tenant]bool
	affinity  bool // sticky endpoints and ports are limited
	blockSize int  // see admission
	decided   int  // ports decided about, for tests
	looked    int  // services looked at for that, for tests
}

// tenant is the services of a namespace, and what they ask for.
type tenant struct {
	namespace string
	services  map[*service]bool
	sorted    []*service // by age and name; nil until it is needed
	of        [2]struct {
		total      Budget
		limited    int                     // ports that are not served, or without affinity
		admissions map[*service]*admission // nil until a limit is exceeded for the first time
		runs       []block                 // of as many services of sorted each as budget.blockSize says
	}
}

// admission has the decisions about the ports of a service in a family, made once its namespace has asked for too much.
// There may be hundreds of thousands of ports, so a change repeats only the decisions that it may affect: those of a
// block in which a port has changed, or whose decisions do not hold for the budget that is left now.
type admission struct {
	ports   []*port // that the service asks for, by name; nil: not known
	blocks  []block // of as many ports each as budget.blockSize says
	tooMany bool    // source ranges: no port is served
}

// block is ports of a service, or a run of services of a tenant, that come after each other: there may be hundreds of
// thousands of either.
type block struct {
	isDue   bool
	serves  bool   // any port
	cost    Budget // of its ports that are served
	limited int    // ports that are not, or without affinity
	// The decisions hold while what is left before the block is at least low and below high.
	low, high amounts
}

// amounts are numbers of items, one for each limit that ports may exceed.
type amounts [numExcesses]int

// needs returns how much of each limit an amount takes.
func (b Budget) needs() amounts {
	return amounts{ofOwnDestinations: b.Destinations, ofFrontends: b.Frontends, ofDestinations: b.Destinations,
		ofRanges: b.SourceRanges, ofOwnRestricted: b.RestrictedPorts, ofRestricted: b.RestrictedPorts,
		ofOwnSticky: b.StickyEndpoints, ofSticky: b.StickyEndpoints, ofOwnStickyPorts: b.StickyPorts,
		ofStickyPorts: b.StickyPorts}
}

func (b *block) holds(left amounts) bool {
	for e := range left {
		if left[e] < b.low[e] || left[e] >= b.high[e] && b.high[e] < math.MaxInt {
			return false
		}
	}
	return !b.isDue
}

// begin makes a block that is empty, and holds whatever is left.
func (b *block) begin() {
	*b = block{}
	for e := range b.high {
		b.high[e] = math.MaxInt
	}
}

// narrow makes a run of services hold only as long as the next of its blocks does, which holds while what is left is at
// least low and below high. What a service may have alone does not depend on what is left.
func (b *block) narrow(low, high amounts) {
	used := b.cost.needs()
	for _, e := range [...]excess{ofFrontends, ofDestinations, ofRanges, ofRestricted, ofSticky, ofStickyPorts} {
		b.low[e] = max(b.low[e], used[e]+low[e])
		if high[e] < math.MaxInt {
			b.high[e] = min(b.high[e], used[e]+high[e])
		}
	}
}

// decide decides which ports of a block are served, and which with affinity. It appends those for which the decision
// has changed.
func (b *block) decide(ports []*port, left amounts, tooManyRanges bool, changed []*port) []*port {
	b.begin()
	for _, p := range ports {
		c, why := p.cost(), ofRanges
		if !tooManyRanges {
			why = b.exceeded(c.needs(), left)
		}
		if why.deniesAffinity() {
			c.StickyEndpoints, c.StickyPorts = 0, 0
		}
		if !why.refuses() {
			b.serves = true
			b.cost.add(c)
		}
		if why != noExcess {
			b.limited++
		}
		if p.excess != why {
			p.excess = why
			changed = append(changed, p)
		}
	}
	return changed
}

// exceeded returns the first limit that the next port exceeds, and narrows low and high to the amounts for which that
// holds.
func (b *block) exceeded(needs, left amounts) excess {
	used := b.cost.needs()
	for e := range numExcesses {
		n := used[e] + needs[e]
		if n > left[e] {
			b.high[e] = min(b.high[e], n)
			return e
		}
		b.low[e] = max(b.low[e], n)
	}
	return noExcess
}

// admission returns the admission of a service in a family, after updating its list of ports.
func (s *service) admission(f *family) *admission {
	known := &s.tenant.of[f.index].admissions
	if *known == nil {
		*known = map[*service]*admission{}
	}
	a := (*known)[s]
	if a == nil {
		a = &admission{}
		(*known)[s] = a
	}
	if a.ports == nil {
		a.ports = make([]*port, 0, len(s.ports.all))
		for _, p := range s.ports.all {
			if p.family == f && p.asks {
				a.ports = append(a.ports, p)
			}
		}
		slices.SortFunc(a.ports, func(a, b *port) int { return a.name.Compare(b.name) })
		a.blocks = make([]block, (len(a.ports)+f.limits.blockSize-1)/f.limits.blockSize)
		for i := range a.blocks {
			a.blocks[i].isDue = true
		}
	}
	return a
}

// touch notes that the cost of a port has changed, or whether its service asks for it.
func (p *port) touch() {
	p.service.touch(p.family)
	a := p.service.tenant.of[p.family.index].admissions[p.service]
	if a == nil {
		return
	}
	at, found := slices.BinarySearchFunc(a.ports, p, func(a, b *port) int { return a.name.Compare(b.name) })
	if found && p.asks {
		a.blocks[at/p.family.limits.blockSize].isDue = true
	} else {
		a.ports = nil
	}
}

// touch notes that what a service asks for has changed, or what its ports cost.
func (s *service) touch(f *family) {
	n := s.tenant
	runs := n.of[f.index].runs
	if len(runs) == 0 {
		return
	}
	at, found := slices.BinarySearchFunc(n.sorted, s, (*service).compareAge)
	if j := at / f.limits.blockSize; found && j < len(runs) {
		runs[j].isDue = true
	}
}

// admit decides which ports of a service are served within what is left of its namespace's budget before its run, and
// returns those for which the decision has changed. It adds the service to the run.
func (s *service) admit(f *family, run *block, before Budget) (changed []*port) {
	a, ranges, own, served := s.admission(f), int(s.ranges[f.index]), f.limits.Service, false
	size := f.limits.blockSize
	f.limits.looked++
	tooMany := ranges > before.SourceRanges-run.cost.SourceRanges
	var none block
	if none.begin(); tooMany {
		none.high[ofRanges] = ranges
	} else {
		none.low[ofRanges] = ranges
	}
	run.narrow(none.low, none.high)
	for i := range a.blocks {
		b, ports := &a.blocks[i], a.ports[i*size:min((i+1)*size, len(a.ports))]
		r := before.minus(run.cost).needs()
		r[ofOwnDestinations], r[ofOwnRestricted] = own.Destinations, own.RestrictedPorts
		r[ofOwnSticky], r[ofOwnStickyPorts] = own.StickyEndpoints, own.StickyPorts
		if tooMany != a.tooMany || !b.holds(r) {
			changed = b.decide(ports, r, tooMany, changed)
			f.limits.decided += len(ports)
		}
		run.narrow(b.low, b.high)
		run.cost.add(b.cost)
		own = own.minus(b.cost)
		run.limited += b.limited
		served = served || b.serves
	}
	if a.tooMany = tooMany; served {
		run.cost.SourceRanges += ranges
	}
	return changed
}

// admit decides, for each tenant that exceeds limits or did, which ports are served, and which of them with affinity.
func (t *Table) admit(update func(*service, *family, []*port)) {
	for _, n := range slices.SortedFunc(maps.Keys(t.budget.due), func(a, b *tenant) int {
		return cmp.Compare(a.namespace, b.namespace)
	}) {
		if n.sorted == nil {
			n.sorted = slices.SortedFunc(maps.Keys(n.services), (*service).compareAge)
		}
		for _, f := range t.families {
			left, limited := t.budget.Namespace, 0
			for run, services := range n.runs(f) {
				if !run.holds(left.needs()) {
					run.begin()
					for _, s := range services {
						if s.object == nil {
							continue
						}
						if changed := s.admit(f, run, left); len(changed) > 0 {
							update(s, f, changed)
						}
					}
				}
				left = left.minus(run.cost)
				limited += run.limited
			}
			n.of[f.index].limited = limited // admissions are kept, for tenants that exceed a limit again and again
		}
	}
	clear(t.budget.due)
}

// runs returns the runs of services in a family, with these.
func (n *tenant) runs(f *family) iter.Seq2[*block, []*service] {
	u, size := &n.of[f.index], f.limits.blockSize
	many := (len(n.sorted) + size - 1) / size
	for len(u.runs) < many {
		u.runs = append(u.runs, block{isDue: true})
	}
	u.runs = u.runs[:many]
	return func(yield func(*block, []*service) bool) {
		for i := range u.runs {
			if !yield(&u.runs[i], n.sorted[i*size:min((i+1)*size, len(n.sorted))]) {
				return
			}
		}
	}
}

// shift notes that the services from a place on are in other places.
func (n *tenant) shift(at, blockSize int) {
	for i := range n.of {
		runs := n.of[i].runs
		for j := at / blockSize; j < len(runs); j++ {
			runs[j].isDue = true
		}
	}
}

// charge notes that the cost of a port has changed.
func (p *port) charge(before Budget) {
	if now := p.cost(); now != before {
		p.touch()
		p.service.charge(p.family, now.minus(before))
	}
}

// charge notes that a service costs more, or less.
func (s *service) charge(f *family, more Budget) {
	i := f.index
	s.destinations[i] += more.Destinations
	s.restricted[i] += int32(more.RestrictedPorts)
	s.sticky[i] += int32(more.StickyEndpoints)
	s.stickyPorts[i] += int32(more.StickyPorts)
	u := &s.tenant.of[i]
	u.total.add(more)
	if l := f.limits; u.limited > 0 || u.total.exceeds(l.Namespace) || s.destinations[i] > l.Service.Destinations ||
		int(s.restricted[i]) > l.Service.RestrictedPorts || int(s.sticky[i]) > l.Service.StickyEndpoints ||
		int(s.stickyPorts[i]) > l.Service.StickyPorts {
		l.due[s.tenant] = true
	}
}

// join adds a service to its tenant.
func (t *Table) join(s *service) {
	n := t.tenants[s.name.Namespace]
	if n == nil {
		n = &tenant{namespace: s.name.Namespace, services: map[*service]bool{}}
		t.tenants[n.namespace] = n
	}
	s.tenant = n
	n.services[s] = true
	t.addSorted(s)
}

// forget removes a service of which nothing is known any more.
func (t *Table) forget(s *service) {
	delete(t.services, s.name)
	n := s.tenant
	t.removeSorted(s)
	for i := range n.of {
		delete(n.of[i].admissions, s)
	}
	if delete(n.services, s); len(n.services) == 0 {
		delete(t.tenants, n.namespace)
	}
}

// setAge sets the age of a service from its object.
func (t *Table) setAge(s *service) {
	age := s.object.Created.UnixMicro()
	if s.object.Created.IsZero() {
		age = math.MaxInt64
	}
	if age == s.age {
		return
	}
	t.removeSorted(s)
	s.age = age
	t.addSorted(s)
	t.decideAgain(s.tenant)
}

// decideAgain makes a tenant due again if it has ports that are not served, or without affinity.
func (t *Table) decideAgain(n *tenant) {
	for i := range n.of {
		if n.of[i].limited > 0 {
			t.budget.due[n] = true
		}
	}
}

func (s *service) compareAge(o *service) int {
	return cmp.Or(cmp.Compare(s.age, o.age), s.name.Compare(o.name))
}

// addSorted inserts a service into the order by age of its tenant.
func (t *Table) addSorted(s *service) {
	if n := s.tenant; n.sorted != nil {
		at, _ := slices.BinarySearchFunc(n.sorted, s, (*service).compareAge)
		n.sorted = slices.Insert(n.sorted, at, s)
		n.shift(at, t.budget.blockSize)
	}
}

// removeSorted removes it from that order.
func (t *Table) removeSorted(s *service) {
	n := s.tenant
	if at, found := slices.BinarySearchFunc(n.sorted, s, (*service).compareAge); found {
		n.sorted = slices.Delete(n.sorted, at, at+1)
		n.shift(at, t.budget.blockSize)
	}
}
