package localstate

import (
	"hash/crc32"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// indexAbove is the number of endpoints above which a service has an index. For smaller services it is cheaper to look
// at all endpoints. It is copied to a field of State, so that tests can have an index for small services.
const indexAbove = 64

// index is kept for a large service, so that the cost of a change does not depend on the service's size. It answers
// three questions without looking at every endpoint: how many endpoints of each kind a port has, which slices have
// changed since the last Flush, and whether other slices have an address, too. It describes the service as of the last
// Flush.
type index struct {
	flushed bool           // otherwise it is new, and describes nothing yet
	ports   []*indexedPort // in order of port name, protocol and family
	// before has the slices that changed since the last Flush, as they were then; nil: the slice did not exist.
	before map[string]*sliceIntake
	// hashes count the addresses by their hashes; nil while a family has only one slice, which needs none. Collisions only
	// cost time.
	hashes model.PerFamily[addrHashes]
	nodes  *nodeIndex // nil unless the parts of nodes are asked for
}

// indexedPort is what is known about a service port in one family.
type indexedPort struct {
	PortFamily
	counts counts
	rules  rules
}

// port returns what is known about a port, or nil.
func (x *index) port(port PortFamily) *indexedPort {
	at, found := slices.BinarySearchFunc(x.ports, port,
		func(p *indexedPort, port PortFamily) int { return p.Compare(port) })
	if !found {
		return nil
	}
	return x.ports[at]
}

// known returns what the index knows about a port, or nil. A Flush asks for all ports of a service, in order.
func (w *waveBuffers) known(port PortFamily) *indexedPort {
	for ; len(w.indexed) > 0; w.indexed = w.indexed[1:] {
		switch c := w.indexed[0].Compare(port); {
		case c > 0:
			return nil
		case c == 0:
			return w.indexed[0]
		}
	}
	return nil
}

// noteChange records a slice as it was at the last Flush, or that it did not exist.
func (svc *service) noteChange(name string, old *sliceIntake) {
	if x := svc.index; x != nil {
		if _, noted := x.before[name]; !noted {
			x.before[name] = old
		}
	}
}

// openIndex prepares a Flush of a service. A large service gets an index, unless it has one. A small one loses its
// index, and so does one of whose ports none gets endpoints.
func (s *State) openIndex(svc *service) {
	switch {
	case svc.size <= s.indexAbove/2, s.limits.refusesAll(svc):
		svc.index = nil
	case svc.size > s.indexAbove && svc.index == nil:
		svc.index = &index{}
	}
	s.wave.indexed, s.wave.toIndex = nil, s.wave.toIndex[:0]
	if svc.index != nil {
		s.wave.indexed = svc.index.ports
	}
	for _, f := range s.families {
		b := s.wave.families.At(f)
		if b.allEntries = false; svc.index != nil {
			b.difference.find(svc, f)
		}
	}
	if svc.index != nil {
		s.updateNodes(svc)
	}
}

// closeIndex ends a Flush of a service.
func (s *State) closeIndex(svc *service) {
	if x, now := svc.index, s.wave.toIndex; x != nil {
		x.flushed, x.before = true, map[string]*sliceIntake{}
		if !slices.Equal(now, x.ports) {
			x.partsChange()
			x.ports = slices.Clone(now)
		}
	}
}

// partsChange records a change that affects the parts of all nodes.
func (x *index) partsChange() {
	if x.nodes != nil {
		x.nodes.all = true
	}
}

// seen is what a Flush knows about a port so far: its new counts, and all its candidates or, if the index knows the
// port, its record as of the last Flush.
type seen struct {
	all    []candidate
	before *indexedPort // as of the last Flush; nil: all is set
	counts counts
}

// look counts the candidates of a port.
func (p *familyPort) look() seen {
	n := seen{before: p.wave.known(PortFamily{p.name.Port, p.name.Protocol, p.family})}
	if n.before == nil {
		n.all = p.allCandidates()
		p.count(&n.counts, n.all, 1)
		return n
	}
	n.counts = n.before.counts
	d := &p.wave.families.At(p.family).difference
	p.count(&n.counts, p.candidates(&d.before), -1)
	p.count(&n.counts, p.candidates(&d.after), 1)
	return n
}

// update merges the candidates that may have changed into a section of the port's list. Which these are depends on what
// is known:
//
//	of the service                    candidates
//	no index                          all
//	an index, by port and family:
//	  not known                       all
//	  known, but the rules differ     all
//	  known, with the same rules      those at addresses that changes of slices touch
func (p *familyPort) update(n *seen, r *rules, part section) {
	switch {
	case n.before == nil:
		p.merge(n.all, part, r)
	case n.before.rules != *r:
		p.merge(p.allCandidates(), part, r)
	default:
		p.mergeTouched(part, r)
	}
	if x := p.svc.index; x != nil {
		if n.before == nil {
			n.before = &indexedPort{PortFamily: PortFamily{p.name.Port, p.name.Protocol, p.family}}
		}
		if n.before.rules != *r || n.before.counts.allHaveNodeHints() != n.counts.allHaveNodeHints() {
			x.partsChange()
		}
		n.before.counts, n.before.rules = n.counts, *r
		p.wave.toIndex = append(p.wave.toIndex, n.before)
	}
}

// mergeTouched merges the candidates at touched addresses.
func (p *familyPort) mergeTouched(part section, r *rules) {
	d := &p.wave.families.At(p.family).difference
	if len(d.touched) == 0 {
		return
	}
	candidates := p.candidates(&d.after)
	for _, addr := range d.touched {
		n := 0
		for n < len(candidates) && candidates[n].target.Addr() == addr {
			n++
		}
		byAddr := func(e *model.Endpoint, addr netip.Addr) int { return e.Target.Addr().Compare(addr) }
		i, _ := slices.BinarySearchFunc(part.list[part.from:part.to], addr, byAddr)
		part.from += i
		here := part
		here.to = here.from
		for here.to < part.to && part.list[here.to].Target.Addr() == addr {
			here.to++
		}
		p.merge(candidates[:n], here, r)
		candidates, part.from = candidates[n:], here.to
	}
}

// localEndpointsOf is localEndpoints for one family. It counts all endpoints or, if the index knows the last count,
// only the changes.
func (s *State) localEndpointsOf(svc *service, f model.Family) int {
	if x := svc.index; x == nil || !x.flushed || svc.handed.HealthCheck == nil || !svc.handed.ClusterIP(f).IsValid() {
		return s.wave.allOf(svc, f).countLocal()
	}
	d := &s.wave.families.At(f).difference
	return *svc.handed.HealthCheck.LocalEndpoints.At(f) + d.after.countLocal() - d.before.countLocal()
}

// difference is what changed in one family of a large service since the last Flush.
type difference struct {
	// touched are the addresses at which anything changed, sorted.
	touched []netip.Addr
	// before and after have all entries at these addresses, including those of unchanged slices.
	before, after entries

	// scratch space
	suspects  []netip.Addr
	unchanged []*sliceIntake
}

// find fills in the difference of one family, and brings the index's hashes up to date.
func (d *difference) find(svc *service, f model.Family) {
	d.touched = d.touched[:0]
	d.before.reset()
	d.after.reset()
	x := svc.index
	names := slices.Sorted(maps.Keys(x.before))
	ofFamily := func(s *sliceIntake) *sliceIntake {
		if s == nil || s.family != f {
			return nil
		}
		return s
	}
	for _, name := range names {
		d.compare(ofFamily(x.before[name]), ofFamily(svc.slice(name)))
	}
	d.touch()
	if len(d.touched) == 0 {
		return
	}
	d.before.onlyAt(d.touched)
	d.after.onlyAt(d.touched)

	clear(d.unchanged)
	d.unchanged = d.unchanged[:0]
	for _, slice := range svc.slices {
		if _, changed := slices.BinarySearch(names, slice.name); !changed && slice.family == f {
			d.unchanged = append(d.unchanged, slice)
		}
	}
	known := x.hashes.At(f)
	if *known == nil && len(d.unchanged) > 0 {
		*known = hashes(append(slices.Clone(d.unchanged), d.before.slices...))
	}
	if *known != nil {
		d.suspect(*known)
		d.addUnchanged()
	}
}

// compare adds the entries at which two versions of a slice differ, and possibly some more. Either may be nil.
func (d *difference) compare(before, after *sliceIntake) {
	front, back := 0, 0
	if before != nil && after != nil && slices.Equal(before.ports, after.ports) {
		// Usually most of the endpoints are at the same index as before.
		n := min(before.len(), after.len())
		for front < n && before.sameEndpoint(front, after, front) {
			front++
		}
		for back < n-front && before.sameEndpoint(before.len()-1-back, after, after.len()-1-back) {
			back++
		}
	}
	if before != nil {
		d.before.add(before, front, before.len()-back)
	}
	if after != nil {
		d.after.add(after, front, after.len()-back)
	}
}

// touch finds the addresses at which the entries differ.
func (d *difference) touch() {
	d.before.sort()
	d.after.sort()
	same := func(a, b entry) bool {
		before, after := d.before.slices[a.slice], d.after.slices[b.slice]
		return before.name == after.name && slices.Equal(before.ports, after.ports) &&
			before.sameEndpoint(int(a.at), after, int(b.at))
	}
	olds, news := d.before.list, d.after.list
	for len(olds) > 0 || len(news) > 0 {
		next := news
		if len(news) == 0 || len(olds) > 0 && olds[0].addr.Less(news[0].addr) {
			next = olds
		}
		addr := next[0].addr
		o, n := olds[:countAt(olds, addr)], news[:countAt(news, addr)]
		if !slices.EqualFunc(o, n, same) {
			d.touched = append(d.touched, addr)
		}
		olds, news = olds[len(o):], news[len(n):]
	}
}

// onlyAt replaces the entries by all entries that the slices have at some addresses.
func (e *entries) onlyAt(addrs []netip.Addr) {
	e.list = e.list[:0]
	for s := range e.slices {
		e.addAt(int32(s), addrs)
	}
	e.sort()
}

// addAt adds the entries of one slice that have one of the addresses. It reports whether there are any.
func (e *entries) addAt(s int32, addrs []netip.Addr) (any bool) {
	slice := e.slices[s]
	for i := range slice.len() {
		if slice.flags(i).has(flagInvalid) {
			continue
		}
		addr := slice.addr(i)
		if _, found := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare); found {
			e.list = append(e.list, entry{addr, s, int32(i)})
			any = true
		}
	}
	return any
}

// hashes counts the addresses of slices by their hashes.
func hashes(list []*sliceIntake) addrHashes {
	size := 0
	for _, slice := range list {
		size += slice.len()
	}
	all := make(addrHashes, size)
	for _, slice := range list {
		for i := range slice.len() {
			if !slice.flags(i).has(flagInvalid) {
				all[crc32.ChecksumIEEE(slice.endpoint(i)[1:])]++
			}
		}
	}
	return all
}

// suspect finds the touched addresses that unchanged slices may have, too: those whose hash occurs more often in all
// slices than in the changed ones. It also updates the hashes.
func (d *difference) suspect(known addrHashes) {
	d.suspects = d.suspects[:0]
	for _, addr := range d.touched {
		h := crc32.ChecksumIEEE(addr.AsSlice())
		before, after := d.before.at(addr), d.after.at(addr)
		if int(known[h]) > len(before) {
			d.suspects = append(d.suspects, addr)
		}
		if known[h] += int32(len(after) - len(before)); known[h] == 0 {
			delete(known, h)
		}
	}
}

// addUnchanged adds the entries that unchanged slices have at the suspected addresses.
func (d *difference) addUnchanged() {
	if len(d.suspects) == 0 {
		return
	}
	for _, slice := range d.unchanged {
		for _, e := range []*entries{&d.before, &d.after} {
			n := len(e.slices)
			e.slices = append(e.slices, slice)
			if !e.addAt(int32(n), d.suspects) {
				e.slices = slices.Delete(e.slices, n, n+1)
				break
			}
		}
	}
	d.before.sort()
	d.after.sort()
}
