package localstate

import (
	"cmp"
	"hash/crc32"
	"iter"
	"net/netip"
	"slices"
	"unique"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// nodeIndex finds the endpoints of a node, and those with hints for it, in the slices of a large service. So the cost
// of computing a node's part depends on the part, not on the service. It describes the service as of the last Flush. A
// service gets one with the first call of [State.ChangedParts] for it.
type nodeIndex struct {
	at     map[string][]position // by node, in order
	slices map[string]*indexedSlice

	// Since the last ChangedParts:
	touched map[string]struct{} // nodes with endpoints, or hints, at addresses at which anything changed
	all     bool                // something changed that affects the parts of all nodes
}

// indexedSlice is the current version of a slice.
type indexedSlice struct{ *sliceIntake }

// position is the place of an endpoint in a slice.
type position struct {
	slice *indexedSlice
	at    int32
}

func (p position) compare(o position) int {
	if p.slice == o.slice {
		return cmp.Compare(p.at, o.at)
	}
	return cmp.Compare(p.slice.name, o.slice.name)
}

// nodes yields the node of an endpoint and the nodes that its hints name, possibly with duplicates.
func (p *place) nodes() iter.Seq[string] {
	return func(yield func(string) bool) {
		if p.node != "" && !yield(p.node) || p.nodeHints == "" {
			return
		}
		for _, node := range splitHints(p.nodeHints) {
			if !yield(node) {
				return
			}
		}
	}
}

func newNodeIndex(svc *service) *nodeIndex {
	x := &nodeIndex{at: map[string][]position{}, slices: make(map[string]*indexedSlice, len(svc.slices)),
		touched: map[string]struct{}{}}
	m := moves{}
	for _, slice := range svc.slices {
		x.change(m, slice.name, nil, slice)
	}
	x.move(m)
	return x
}

// moves are the positions that nodes lose and get.
type moves map[string]*struct{ gone, come []position }

// change notes what nodes lose and get if a slice is replaced by a new version. Either may be nil.
func (x *nodeIndex) change(m moves, name string, before, after *sliceIntake) {
	var olds, news []unique.Handle[place]
	if before != nil {
		olds = before.places
	}
	if after != nil {
		news = after.places
	}
	front, back := 0, 0
	for front < min(len(olds), len(news)) && olds[front] == news[front] {
		front++
	}
	if len(olds) == len(news) { // otherwise the endpoints at the back have moved
		for back < len(olds)-front && olds[len(olds)-1-back] == news[len(news)-1-back] {
			back++
		}
	}
	slice := x.slices[name]
	if slice == nil {
		slice = &indexedSlice{before}
	}
	for i := front; i < len(olds)-back; i++ {
		p := olds[i].Value()
		for node := range p.nodes() {
			of := m.of(node)
			of.gone = append(of.gone, position{slice, int32(i)})
		}
	}
	if after == nil {
		delete(x.slices, name)
		return
	}
	slice.sliceIntake, x.slices[name] = after, slice
	for i := front; i < len(news)-back; i++ {
		p := news[i].Value()
		for node := range p.nodes() {
			of := m.of(node)
			of.come = append(of.come, position{slice, int32(i)})
		}
	}
}

func (m moves) of(node string) *struct{ gone, come []position } {
	if m[node] == nil {
		m[node] = &struct{ gone, come []position }{}
	}
	return m[node]
}

// move applies what change has noted. All that happens to a node is applied at once: it may have all endpoints of the
// service, and then each one by itself would move all of them.
func (x *nodeIndex) move(m moves) {
	for node, of := range m {
		list := remove(x.at[node], distinct(of.gone))
		if list = insert(list, distinct(of.come)); len(list) > 0 {
			x.at[node] = list
		} else {
			delete(x.at, node)
		}
	}
}

// distinct sorts positions and drops duplicates: an endpoint may be on a node and have a hint for it.
func distinct(list []position) []position {
	slices.SortFunc(list, position.compare)
	return slices.Compact(list)
}

// remove deletes positions from a list. Both are sorted.
func remove(list, gone []position) []position {
	left, rest := list[:0], list
	for _, p := range gone {
		i, found := slices.BinarySearchFunc(rest, p, position.compare)
		left = append(left, rest[:i]...)
		if rest = rest[i:]; found {
			rest = rest[1:]
		}
	}
	left = append(left, rest...)
	clear(list[len(left):])
	return left
}

// insert adds positions to a list that has none of them. Both are sorted.
func insert(list, come []position) []position {
	end := len(list)
	list = slices.Grow(list, len(come))[:end+len(come)]
	for n := len(come) - 1; n >= 0; n-- {
		i, _ := slices.BinarySearchFunc(list[:end], come[n], position.compare)
		copy(list[i+n+1:], list[i:end])
		list[i+n], end = come[n], i
	}
	return list
}

// touch records the nodes whose parts may have changed because of some entries.
func (x *nodeIndex) touch(e *entries) {
	for _, entry := range e.list {
		p := e.slices[entry.slice].places[entry.at].Value()
		for node := range p.nodes() {
			x.touched[node] = struct{}{}
		}
	}
}

// updateNodes updates the index of nodes during a Flush, once the differences of all families are known.
func (s *State) updateNodes(svc *service) {
	x := svc.index.nodes
	if x == nil {
		return
	}
	m := moves{}
	for name, before := range svc.index.before {
		x.change(m, name, before, svc.slice(name))
	}
	x.move(m)
	for _, f := range s.families {
		d := &s.wave.families.At(f).difference
		if len(d.touched) > 0 {
			x.touch(&d.before)
			x.touch(&d.after)
		}
	}
}

// ChangedParts returns those parts of [State.NodeParts] that may have changed since the last call of ChangedParts for
// this service. A nil part means that the node may have had a part before and has none now. all: the result has the
// parts of all nodes. Call it between a Flush and the next Apply.
//
// It looks at every endpoint of the service at the first call, at every call for a small service, and after a change
// that affects the parts of all nodes: of the ports of the service, of its policies, or of whether any endpoint is
// ready or lacks a hint. Otherwise the cost is that of the parts of the nodes whose endpoints changed.
func (s *State) ChangedParts(name model.ServiceName, keep func(node string) bool) (parts map[string]*NodePart,
	all bool) {
	svc := s.services[name]
	if svc == nil || svc.intake == nil || svc.index == nil {
		return s.NodeParts(name, keep), true
	}
	x := svc.index.nodes
	if x == nil || x.all {
		svc.index.nodes = newNodeIndex(svc)
		return s.NodeParts(name, keep), true
	}
	touched := x.touched
	x.touched = map[string]struct{}{}
	parts = make(map[string]*NodePart, len(touched))
	var buf entries
	enough := worthOnePass * svc.weight()
	for node := range touched {
		if !keep(node) {
			continue
		}
		if parts[node] = s.nodePart(svc, node, &buf); buf.looked <= enough {
			continue
		}
		all := s.NodeParts(name, func(node string) bool {
			_, is := touched[node]
			return is && keep(node)
		})
		for node := range touched {
			if keep(node) {
				parts[node] = all[node] // nil: the node has none
			}
		}
		break
	}
	return parts, false
}

// worthOnePass is how many times as many endpoints and ports as the service has ChangedParts looks at before it works
// out the remaining parts in one pass over all of them. A part needs such a pass of its own if another slice has one of
// its addresses too; and it looks at all ports of the service, and of the slices with endpoints on the node.
const worthOnePass = 4

// weight returns how many endpoints and ports one pass over a service looks at.
func (svc *service) weight() int {
	return svc.size + numPorts(svc.slices) + len(svc.intake.fields.Ports)
}

// numPorts returns how many ports slices have. Adjacent ones that share theirs count once.
func numPorts(list []*sliceIntake) (n int) {
	for i, slice := range list {
		if i == 0 || !sharePorts(slice, list[i-1]) {
			n += len(slice.ports)
		}
	}
	return n
}

// nodePart returns the part of one node in a service with an index of nodes, or nil.
func (s *State) nodePart(svc *service, node string, buf *entries) *NodePart {
	positions := svc.index.nodes.at[node]
	if len(positions) == 0 {
		return nil
	}
	parts := partsOf{keep: func(other string) bool { return other == node }, parts: map[string]*NodePart{}}
	for _, f := range s.families {
		if !svc.intake.families.Has(f) {
			continue
		}
		svc.entriesOf(f, positions, buf)
		buf.looked += numPorts(buf.slices) + len(svc.intake.fields.Ports)
		if svc.intake.fields.HealthCheck != nil {
			parts.countLocal(buf, f)
		}
		for i := range svc.intake.fields.Ports {
			p := s.familyPort(svc, &svc.intake.fields.Ports[i], f)
			if known := svc.index.port(PortFamily{p.name.Port, p.name.Protocol, f}); known != nil {
				candidates := buf.candidates(nil, buf.forPort(p.name.Port, p.name.Protocol))
				parts.add(&p, candidates, &known.counts, known.rules)
			}
		}
	}
	parts.sort()
	return parts.parts[node]
}

// entriesOf sets e to all entries at the addresses that a node has in a family, including entries of other nodes.
func (svc *service) entriesOf(f model.Family, positions []position, e *entries) {
	e.reset()
	e.looked += len(positions)
	var last *indexedSlice
	for _, p := range positions {
		if p.slice.family != f || p.slice.flags(int(p.at)).has(flagInvalid) {
			continue
		}
		if p.slice != last {
			last = p.slice
			e.slices = append(e.slices, p.slice.sliceIntake)
		}
		e.list = append(e.list, entry{p.slice.addr(int(p.at)), int32(len(e.slices) - 1), p.at})
	}
	e.sort()
	if svc.index.hashesOf(svc, f).haveMoreThan(e) {
		e.looked += svc.size
		var addrs []netip.Addr
		for same := range e.byAddr() {
			addrs = append(addrs, same[0].addr)
		}
		e.slices = e.slices[:0]
		for _, slice := range svc.slices {
			if slice.family == f {
				e.slices = append(e.slices, slice)
			}
		}
		e.onlyAt(addrs)
	}
}

// addrHashes count the addresses of a service by their hashes.
type addrHashes map[uint32]int32

// hashesOf returns the hashes of a family of the service.
func (x *index) hashesOf(svc *service, f model.Family) addrHashes {
	known := x.hashes.At(f)
	if *known == nil {
		var list []*sliceIntake
		for _, slice := range svc.slices {
			if slice.family == f {
				list = append(list, slice)
			}
		}
		*known = hashes(list)
	}
	return *known
}

// haveMoreThan reports whether there may be further entries at the addresses of the given ones.
func (h addrHashes) haveMoreThan(e *entries) bool {
	for same := range e.byAddr() {
		hash := crc32.ChecksumIEEE(e.slices[same[0].slice].endpoint(int(same[0].at))[1:])
		if int(h[hash]) > len(same) {
			return true
		}
	}
	return false
}
