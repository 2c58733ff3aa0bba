package localstate

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// portTable finds which of some entries have a port, and with which numbers. Usually all slices of a service have the
// same ports, and share one list of them. But pods may differ in the numbers of named ports, and programs other than
// the controller write slices, too: in the worst case no two slices have a port in common. Even then the cost of a port
// depends only on the slices that have it. group fills in the zero value.
type portTable struct {
	grouped  bool
	groups   []portGroup
	groupOf  []int32 // by slice
	found    []int32 // the groups that have the port of the last find
	contests contests

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

	// These are for contests.
	classes   []int32  // of its targets
	classBits []uint64 // the same, instead, if it has many
	round     uint32   // in which its best entry was found
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
		t.groups[i].ports, t.groups[i].classes, t.groups[i].classBits = nil, nil, nil
	}
	t.grouped, t.byPort = false, nil
	t.contests.reset()
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
		ports = max(ports, len(t.groups[g].ports)) // usually most of them have the same
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
	for _, g := range t.found {
		t.groups[g].numbers = t.groups[g].numbers[:0]
	}
	t.found = t.found[:0]
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
