package localstate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// entry is the at-th endpoint of a slice, a valid one.
type entry struct {
	addr  netip.Addr
	slice int32 // in entries.slices
	at    int32
}

// entries are endpoints of some slices of one service and one family, in the order that all ports need: by address,
// then by slice and place. The candidates of a port are made from them. The zero value is empty.
type entries struct {
	slices []*sliceIntake // by name
	list   []entry
	ports  portTable
	looked int // how many endpoints and ports State.nodePart has looked at, since the zero value
}

// reset empties the entries, and keeps their memory.
func (e *entries) reset() {
	clear(e.slices) // drop references to another service's slices
	e.list, e.slices = e.list[:0], e.slices[:0]
	e.ports.reset()
}

// addAll adds all entries that a service has in a family, and sorts them.
func (e *entries) addAll(svc *service, f model.Family) {
	size := 0
	for _, slice := range svc.slices {
		if slice.family == f {
			size += slice.len()
		}
	}
	e.list = slices.Grow(e.list, size)
	for _, slice := range svc.slices {
		if slice.family == f {
			e.add(slice, 0, slice.len())
		}
	}
	e.sort()
}

// add adds a slice, with the valid endpoints in a range of its endpoints.
func (e *entries) add(slice *sliceIntake, from, to int) {
	s := int32(len(e.slices))
	e.slices = append(e.slices, slice)
	for i := from; i < to; i++ {
		if !slice.flags(i).has(flagInvalid) {
			e.list = append(e.list, entry{slice.addr(i), s, int32(i)})
		}
	}
}

func (e *entries) sort() {
	order := func(a, b entry) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		if a.slice != b.slice {
			return cmp.Compare(a.slice, b.slice)
		}
		return cmp.Compare(a.at, b.at)
	}
	if !slices.IsSortedFunc(e.list, order) {
		slices.SortFunc(e.list, order)
	}
}

// countAt returns the number of entries at the beginning of a list that have an address.
func countAt(list []entry, addr netip.Addr) int {
	n := 0
	for n < len(list) && list[n].addr == addr {
		n++
	}
	return n
}

// byAddr yields the entries of each address.
func (e *entries) byAddr() iter.Seq[[]entry] {
	return func(yield func([]entry) bool) {
		for list := e.list; len(list) > 0; {
			n := countAt(list, list[0].addr)
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// at returns the entries with an address.
func (e *entries) at(addr netip.Addr) []entry {
	i, _ := slices.BinarySearchFunc(e.list, addr,
		func(x entry, addr netip.Addr) int { return x.addr.Compare(addr) })
	return e.list[i : i+countAt(e.list[i:], addr)]
}

// candidates appends the candidates, among some entries, of the port that forPort was last called for. The entries must
// be all those of one or more addresses. The candidates are sorted by target (S15, S18), and duplicates that lose are
// marked (S17).
func (e *entries) candidates(buf []candidate, list []entry) []candidate {
	for len(list) > 0 {
		n := countAt(list, list[0].addr)
		first := len(buf)
		for _, x := range list[:n] {
			slice := e.slices[x.slice]
			for _, number := range e.ports.of(x) {
				buf = append(buf, candidate{
					target: netip.AddrPortFrom(x.addr, number.number), slice: slice, at: x.at, port: number.at,
					flags: slice.flags(int(x.at)),
				})
			}
		}
		if len(buf)-first > 1 {
			settleAll(buf[first:])
		}
		list = list[n:]
	}
	return buf
}

// settleAll sorts candidates of one address and settles each target.
func settleAll(same []candidate) {
	slices.SortFunc(same, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.target.Port(), b.target.Port()), strings.Compare(a.slice.name, b.slice.name),
			cmp.Compare(a.port, b.port), cmp.Compare(a.at, b.at))
	})
	for len(same) > 0 {
		n := 1
		for n < len(same) && same[n].target == same[0].target {
			n++
		}
		if n > 1 {
			settle(same[:n])
		}
		same = same[n:]
	}
}

// healthy yields the candidates among the entries of one address that count for a health check (S38): the ready ones of
// any port of the slices, even one that the service does not have.
func (e *entries) healthy(same []entry) iter.Seq[*candidate] {
	return func(yield func(*candidate) bool) {
		if len(same) == 1 { // nearly always
			slice, at := e.slices[same[0].slice], same[0].at
			if flags := slice.flags(int(at)); len(slice.ports) > 0 && flags.has(flagReady) {
				yield(&candidate{slice: slice, at: at, flags: flags})
			}
			return
		}
		for _, own := range e.readyWinners(same) {
			slice := e.slices[own.slice]
			if !yield(&candidate{slice: slice, at: own.at, flags: slice.flags(int(own.at))}) {
				return
			}
		}
	}
}

// countLocal counts the addresses at which a health check finds an endpoint on this node.
func (e *entries) countLocal() (count int) {
	mayCount := func(x entry) bool { return e.slices[x.slice].flags(int(x.at)).has(flagLocal | flagReady) }
	for same := range e.byAddr() {
		if !slices.ContainsFunc(same, mayCount) {
			continue
		}
		for c := range e.healthy(same) {
			if c.flags.has(flagLocal) {
				count++
				break
			}
		}
	}
	return count
}
