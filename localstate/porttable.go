package localstate

import (
	"cmp"
	"encoding/binary"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// portTable finds which of some entries have a port, and with which numbers. Usually all slices of a service have the
// same ports, and share one list of them. But pods may differ in the numbers of named ports, and programs other than
// the controller write slices, too: in the worst case no two slices have a port in common. Even then the cost of a port
// depends only on the slices that have it. group fills in the zero value.
type portTable struct {
	grouped bool
	groups  []portGroup
	groupOf []int32 // by slice
	found   []int32 // the groups that have the port of the last find
	// contested has what contests has returned, by groups.
	contested map[string][]owners
	best      []entry // scratch space of entries.healthy

	// These are for more than fewGroups groups only.
	byPort map[slicePort][]groupPort // by name and protocol
	some   []entry                   // scratch space of the entries that forPort returns
	order  []int32                   // scratch space of forPort
}

// portGroup is a run of adjacent slices that share their ports.
type portGroup struct {
	ports     []slicePort
	numbers   []slicePortNumber // of the port of the last find
	positions []int32           // of its entries in the list, for more than fewGroups groups only
}

// slicePortNumber is the number of the at-th port of a slice.
type slicePortNumber struct {
	number uint16
	at     int32
}

// groupPort is a number that a group has for a port.
type groupPort struct {
	group  int32
	number slicePortNumber
}

// fewGroups is the number of groups up to which a port is searched for in each.
const fewGroups = 4

// reset forgets the entries, and keeps the memory.
func (t *portTable) reset() {
	for i := range t.groups {
		t.groups[i].ports = nil
	}
	t.grouped, t.byPort, t.contested = false, nil, nil
	clear(t.some)
}

// of returns the numbers that an entry has for the port of the last find.
func (t *portTable) of(x entry) []slicePortNumber { return t.groups[t.groupOf[x.slice]].numbers }

// group fills in the table.
func (t *portTable) group(e *entries) {
	if t.grouped {
		return
	}
	t.grouped = true
	t.groupOf, t.found = t.groupOf[:0], t.found[:0]
	n := 0
	for s, slice := range e.slices {
		if s == 0 || !sharePorts(slice, e.slices[s-1]) {
			if n == len(t.groups) {
				t.groups = append(t.groups, portGroup{})
			}
			g := &t.groups[n]
			*g = portGroup{ports: slice.ports, numbers: g.numbers[:0], positions: g.positions[:0]}
			n++
		}
		t.groupOf = append(t.groupOf, int32(n-1))
	}
	clear(t.groups[n:])
	if t.groups = t.groups[:n]; n <= fewGroups {
		return
	}
	ports := 0
	for g := range t.groups {
		ports += len(t.groups[g].ports)
	}
	t.byPort = make(map[slicePort][]groupPort, ports)
	for g := range t.groups {
		for at, p := range t.groups[g].ports {
			key := slicePort{name: p.name, protocol: p.protocol}
			t.byPort[key] = append(t.byPort[key], groupPort{int32(g), slicePortNumber{p.number, int32(at)}})
		}
	}
	for i, x := range e.list {
		g := &t.groups[t.groupOf[x.slice]]
		g.positions = append(g.positions, int32(i))
	}
}

func sharePorts(a, b *sliceIntake) bool {
	return len(a.ports) == len(b.ports) && (len(a.ports) == 0 || &a.ports[0] == &b.ports[0])
}

// find looks up the numbers that each group has for a port.
func (t *portTable) find(name string, protocol model.Protocol) {
	t.forget()
	port := slicePort{name: name, protocol: protocol}
	if len(t.groups) > fewGroups {
		for _, p := range t.byPort[port] {
			t.add(p.group, p.number)
		}
		return
	}
	for g := range t.groups {
		t.search(int32(g), port)
	}
}

// forget drops what was found last.
func (t *portTable) forget() {
	for _, g := range t.found {
		t.groups[g].numbers = t.groups[g].numbers[:0]
	}
	t.found = t.found[:0]
}

// search looks up the numbers that a group has for a port.
func (t *portTable) search(g int32, port slicePort) {
	ports := t.groups[g].ports
	i, _ := slices.BinarySearchFunc(ports, port, slicePort.compare)
	for ; i < len(ports) && ports[i].compare(port) == 0; i++ {
		t.add(g, slicePortNumber{ports[i].number, int32(i)})
	}
}

func (t *portTable) add(g int32, number slicePortNumber) {
	if len(t.groups[g].numbers) == 0 {
		t.found = append(t.found, g)
	}
	t.groups[g].numbers = append(t.groups[g].numbers, number)
}

// owners are the groups that have the same number for a port, by their places among the groups of an address.
type owners []int32

// contests returns the groups of the entries of one address, and the owners of their targets, without duplicates: which
// of the entries wins a target (S17) depends on these alone. There may be thousands of ports, of slices with the
// address, and of addresses in the same slices. So the owners together are never more than the ports of the groups.
func (t *portTable) contests(e *entries, same []entry) (groups []int32, targets []owners) {
	t.group(e)
	var key []byte
	for _, x := range same {
		if g := t.groupOf[x.slice]; len(groups) == 0 || g != groups[len(groups)-1] {
			groups = append(groups, g)
			key = binary.AppendUvarint(key, uint64(g))
		}
	}
	targets, known := t.contested[string(key)]
	if known {
		return groups, targets
	}
	type owned struct {
		port slicePort
		by   int32
	}
	ports := 0
	for _, g := range groups {
		ports += len(t.groups[g].ports)
	}
	all := make([]owned, 0, ports)
	for at, g := range groups {
		for _, p := range t.groups[g].ports {
			all = append(all, owned{p, int32(at)})
		}
	}
	slices.SortFunc(all, func(a, b owned) int {
		return cmp.Or(a.port.compare(b.port), cmp.Compare(a.port.number, b.port.number), cmp.Compare(a.by, b.by))
	})
	all = slices.Compact(all) // a slice may have a port twice
	list := make(owners, 0, len(all))
	for i, o := range all {
		list = append(list, o.by)
		if i+1 == len(all) || all[i+1].port != o.port {
			targets, list = append(targets, slices.Clip(list)), list[len(list):]
		}
	}
	slices.SortFunc(targets, slices.Compare)
	targets = slices.CompactFunc(targets, slices.Equal)
	if t.contested == nil {
		t.contested = map[string][]owners{}
	}
	t.contested[string(key)] = targets
	return groups, targets
}

// forPort prepares candidates for a port. It returns the entries that have the port, in order, and possibly others. The
// result is valid until the next call.
func (e *entries) forPort(name string, protocol model.Protocol) []entry {
	t := &e.ports
	t.group(e)
	t.find(name, protocol)
	if len(t.groups) <= fewGroups {
		return e.list
	}
	n := 0
	for _, g := range t.found {
		n += len(t.groups[g].positions)
	}
	if n > len(e.list)/fewGroups {
		return e.list // selecting them would take as long as looking at all
	}
	t.order = t.order[:0]
	for _, i := range t.found {
		t.order = append(t.order, t.groups[i].positions...)
	}
	if len(t.found) > 1 {
		slices.Sort(t.order)
	}
	t.some = t.some[:0]
	for _, i := range t.order {
		t.some = append(t.some, e.list[i])
	}
	return t.some
}
