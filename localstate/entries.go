package localstate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// entry is a valid endpoint of a slice: the at-th.
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
}

// reset empties the entries, keeps their memory, and sets the slices that they will be from.
func (e *entries) reset(of ...*sliceIntake) {
	clear(e.slices) // drop references to another service's slices
	e.list = e.list[:0]
	e.slices = append(e.slices[:0], of...)
	e.ports.reset()
}

// addAll adds all entries of the slices, and sorts them.
func (e *entries) addAll() {
	for s, slice := range e.slices {
		for i := range slice.len() {
			if !slice.flags(i).has(flagInvalid) {
				e.list = append(e.list, entry{slice.addr(i), int32(s), int32(i)})
			}
		}
	}
	e.sort()
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

// sameAddr returns the number of entries at the beginning of a list that have the same address.
func sameAddr(list []entry) int {
	n := 1
	for n < len(list) && list[n].addr == list[0].addr {
		n++
	}
	return n
}

// at returns the entries with an address.
func (e *entries) at(addr netip.Addr) []entry {
	i, found := slices.BinarySearchFunc(e.list, addr,
		func(x entry, addr netip.Addr) int { return x.addr.Compare(addr) })
	if !found {
		return nil
	}
	return e.list[i : i+sameAddr(e.list[i:])]
}

// candidates appends the candidates that the port of forPort has among some of the entries, which have to be all
// entries of one or more addresses. They are sorted by target (S15, S18), and all but the preferred of duplicates are
// marked (S17).
func (e *entries) candidates(buf []candidate, list []entry) []candidate {
	for len(list) > 0 {
		n := sameAddr(list)
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

// servesLocally reports whether the entries of one address count for a health check (S38): whether any port of the
// slices, even one that the service does not have, has a ready endpoint on this node at that address.
func (e *entries) servesLocally(same []entry) bool {
	const counts = flagReady | flagLocal
	if len(same) == 1 {
		slice := e.slices[same[0].slice]
		return len(slice.ports) > 0 && slice.flags(int(same[0].at)).has(counts)
	}
	if !slices.ContainsFunc(same, func(x entry) bool { return e.slices[x.slice].flags(int(x.at)).has(counts) }) {
		return false
	}
	for c := range e.winners(same) {
		if c.flags.has(counts) {
			return true
		}
	}
	return false
}

// winners yields the candidates of all ports of the slices, even of those that the service does not have, among the
// entries of one address, without duplicates that are not preferred.
func (e *entries) winners(same []entry) iter.Seq[*candidate] {
	return func(yield func(*candidate) bool) {
		asked := map[slicePort]struct{}{}
		for _, x := range same {
			for _, p := range e.slices[x.slice].ports {
				p.number = 0
				if _, was := asked[p]; was {
					continue
				}
				asked[p] = struct{}{}
				e.forPort(p.name, p.protocol)
				for _, c := range e.candidates(nil, same) {
					if !c.loses && !yield(&c) {
						return
					}
				}
			}
		}
	}
}

// countLocal counts the addresses that a health check counts.
func (e *entries) countLocal() int {
	count := 0
	for list := e.list; len(list) > 0; {
		n := sameAddr(list)
		if e.servesLocally(list[:n]) {
			count++
		}
		list = list[n:]
	}
	return count
}
