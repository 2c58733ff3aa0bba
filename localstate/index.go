package localstate

import (
	"cmp"
	"hash/crc32"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// indexAbove is the number of endpoints above which a service has an index. For smaller services it is cheaper to look
// at all endpoints. It is a field of State, so that tests can have an index for small services.
const indexAbove = 64

// index is kept for a large service, so that the cost of a change does not depend on the service's size. It answers
// three questions without a look at every endpoint: how many endpoints of each kind a port has, which slices have
// changed since the last Flush, and whether other slices have an address as well. It describes the service as of the
// last Flush.
type index struct {
	ports []indexedPort // by name
	// before has the slices that changed since, as they were then; nil means that the slice did not exist.
	before map[string]*sliceIntake
	// hashes are the sorted hashes of all addresses, by family; nil while a family has only one slice, which needs
	// none.
	hashes [2][]uint32
}

// indexedPort is what is known of a port. A family that the service does not serve is not known.
type indexedPort struct {
	name     string
	protocol model.Protocol
	counts   [2]counts
	inUse    [2]model.EndpointSets // by the routes
	known    [2]bool
}

func (p *indexedPort) compare(o *indexedPort) int {
	return cmp.Or(cmp.Compare(p.name, o.name), cmp.Compare(p.protocol, o.protocol))
}

// noteChange remembers a slice as it was at the last Flush, or that it did not exist.
func (svc *service) noteChange(name string, old *sliceIntake) {
	if svc.index == nil {
		return
	}
	if _, noted := svc.index.before[name]; noted {
		return
	}
	if svc.index.before == nil {
		svc.index.before = map[string]*sliceIntake{}
	}
	svc.index.before[name] = old
}

// hashes returns the hashes of the addresses of slices, sorted.
func hashes(list []*sliceIntake) []uint32 {
	all := []uint32{}
	for _, slice := range list {
		for i := range slice.len() {
			if !slice.flags(i).has(flagInvalid) {
				all = append(all, slice.hash(i))
			}
		}
	}
	slices.Sort(all)
	return slices.Clip(all)
}

// hash returns the hash of the address of the i-th endpoint. Collisions cost time, nothing else.
func (s *sliceIntake) hash(i int) uint32 { return crc32.ChecksumIEEE(s.endpoint(i)[1:]) }

// difference is what changed in one family of a large service since the last Flush.
type difference struct {
	// touched are the addresses at which anything changed, sorted, and possibly some more.
	touched []netip.Addr
	// before and after are all entries at these addresses, of slices that changed and of others.
	before, after entries

	// scratch space
	suspects  []netip.Addr
	unchanged []*sliceIntake
	edits     []edit[uint32]
	own       [2]entries
}

// find fills in the difference of one family, and brings the index's hashes up to date.
func (d *difference) find(svc *service, f model.Family) {
	d.touched = d.touched[:0]
	d.before.reset()
	d.after.reset()
	names := slices.Sorted(maps.Keys(svc.index.before))
	ofFamily := func(s *sliceIntake) *sliceIntake {
		if s == nil || s.family != f {
			return nil
		}
		return s
	}
	for _, name := range names {
		before, after := ofFamily(svc.index.before[name]), ofFamily(svc.slice(name))
		if before != nil {
			d.before.slices = append(d.before.slices, before)
		}
		if after != nil {
			d.after.slices = append(d.after.slices, after)
		}
		d.touch(before, after)
	}
	if len(d.touched) == 0 {
		return
	}
	slices.SortFunc(d.touched, netip.Addr.Compare)
	d.touched = slices.Compact(d.touched)
	d.before.addTouched(d.touched)
	d.after.addTouched(d.touched)

	clear(d.unchanged)
	d.unchanged = d.unchanged[:0]
	for _, slice := range svc.slices {
		if _, changed := slices.BinarySearch(names, slice.name); !changed && slice.family == f {
			d.unchanged = append(d.unchanged, slice)
		}
	}
	known := &svc.index.hashes[familyIndex(f)]
	if *known == nil && len(d.unchanged) > 0 {
		*known = hashes(append(slices.Clone(d.unchanged), d.before.slices...))
	}
	if *known != nil {
		d.suspect(*known)
		*known = d.rehash(*known)
		if len(d.suspects) > 0 {
			d.addUnchanged()
		}
	}
	d.before.sort()
	d.after.sort()
}

// touch adds the addresses at which two versions of a slice differ. Either may be nil.
func (d *difference) touch(before, after *sliceIntake) {
	if before == nil || after == nil || !slices.Equal(before.ports, after.ports) {
		d.touchAll(before)
		d.touchAll(after)
		return
	}
	// Usually most of the endpoints are at the same index as before.
	from, n := 0, min(before.len(), after.len())
	for from < n && before.sameEndpoint(from, after, from) {
		from++
	}
	back := 0
	for back < n-from && before.sameEndpoint(before.len()-1-back, after, after.len()-1-back) {
		back++
	}
	olds, news := &d.own[0], &d.own[1]
	olds.reset(before)
	news.reset(after)
	olds.addRange(from, before.len()-back)
	news.addRange(from, after.len()-back)
	o, n2 := olds.list, news.list
	for len(o) > 0 || len(n2) > 0 {
		switch {
		case len(n2) == 0 || len(o) > 0 && o[0].addr.Less(n2[0].addr):
			d.touched = append(d.touched, o[0].addr)
			o = o[sameAddr(o):]
		case len(o) == 0 || n2[0].addr.Less(o[0].addr):
			d.touched = append(d.touched, n2[0].addr)
			n2 = n2[sameAddr(n2):]
		default:
			oldsHere, newsHere := o[:sameAddr(o)], n2[:sameAddr(n2)]
			if !slices.EqualFunc(oldsHere, newsHere,
				func(a, b entry) bool { return before.sameEndpoint(int(a.at), after, int(b.at)) }) {
				d.touched = append(d.touched, o[0].addr)
			}
			o, n2 = o[len(oldsHere):], n2[len(newsHere):]
		}
	}
}

func (d *difference) touchAll(slice *sliceIntake) {
	if slice == nil {
		return
	}
	for i := range slice.len() {
		if !slice.flags(i).has(flagInvalid) {
			d.touched = append(d.touched, slice.addr(i))
		}
	}
}

// addRange adds a range of the endpoints of the only slice, and sorts them.
func (e *entries) addRange(from, to int) {
	for i := from; i < to; i++ {
		if !e.slices[0].flags(i).has(flagInvalid) {
			e.list = append(e.list, entry{e.slices[0].addr(i), 0, int32(i)})
		}
	}
	e.sort()
}

// addTouched adds the entries of the slices that have one of some addresses, and sorts them.
func (e *entries) addTouched(addrs []netip.Addr) {
	for s := range e.slices {
		e.addOf(int32(s), addrs)
	}
	e.sort()
}

// addOf adds the entries of one slice that have one of the addresses. It reports whether there are any.
func (e *entries) addOf(s int32, addrs []netip.Addr) (any bool) {
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

// suspect finds the touched addresses that unchanged slices may have, too: those whose hash occurs more often than in
// the changed slices.
func (d *difference) suspect(known []uint32) {
	d.suspects = d.suspects[:0]
	for _, addr := range d.touched {
		h := crc32.ChecksumIEEE(addr.AsSlice())
		at, _ := slices.BinarySearch(known, h)
		n := 0
		for at+n < len(known) && known[at+n] == h {
			n++
		}
		if n > len(d.before.at(addr)) {
			d.suspects = append(d.suspects, addr)
		}
	}
}

// rehash brings hashes up to date with the slices that changed.
func (d *difference) rehash(known []uint32) []uint32 {
	var gone, come []uint32
	for _, x := range d.before.list {
		gone = append(gone, d.before.slices[x.slice].hash(int(x.at)))
	}
	for _, x := range d.after.list {
		come = append(come, d.after.slices[x.slice].hash(int(x.at)))
	}
	slices.Sort(gone)
	slices.Sort(come)
	d.edits = d.edits[:0]
	at := 0 // everything before it is done
	for len(gone) > 0 || len(come) > 0 {
		if len(gone) > 0 && len(come) > 0 && gone[0] == come[0] {
			gone, come = gone[1:], come[1:]
			continue
		}
		if len(come) == 0 || len(gone) > 0 && gone[0] < come[0] {
			i, _ := slices.BinarySearch(known[at:], gone[0])
			at += i
			d.edits = append(d.edits, edit[uint32]{at: at, removes: true})
			at++
			gone = gone[1:]
		} else {
			i, _ := slices.BinarySearch(known[at:], come[0])
			at += i
			d.edits = append(d.edits, edit[uint32]{at: at, inserts: true, value: come[0]})
			come = come[1:]
		}
	}
	return applyEdits(known, d.edits)
}

// addUnchanged adds the entries that unchanged slices have at the suspected addresses.
func (d *difference) addUnchanged() {
	for _, slice := range d.unchanged {
		s := int32(len(d.before.slices))
		d.before.slices = append(d.before.slices, slice)
		first := len(d.before.list)
		if !d.before.addOf(s, d.suspects) {
			d.before.slices[s] = nil
			d.before.slices = d.before.slices[:s]
			continue
		}
		as := int32(len(d.after.slices))
		d.after.slices = append(d.after.slices, slice)
		for _, x := range d.before.list[first:] {
			x.slice = as
			d.after.list = append(d.after.list, x)
		}
	}
}
