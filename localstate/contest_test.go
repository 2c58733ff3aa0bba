package localstate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// contestedSlices returns slices without endpoints. Each has a port of its own, and those of some others that has
// selects.
func contestedSlices(number, ports int, has func(slice, port int) bool) []*sliceIntake {
	list := make([]*sliceIntake, number)
	for s := range list {
		list[s] = &sliceIntake{name: fmt.Sprintf("%03d", s), family: model.IPv4}
		for p := range ports {
			if has(s, p) {
				list[s].ports = append(list[s].ports, slicePort{fmt.Sprintf("p%05d", p), model.TCP, 80})
			}
		}
		list[s].ports = append(list[s].ports, slicePort{fmt.Sprintf("z%05d", s), model.TCP, 80})
	}
	return list
}

// contest adds the n-th address to a slice.
func (s *sliceIntake) contest(n int, flags endpointFlags) {
	s.add(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), flags, unique.Make(place{}))
}

func entriesOfSlices(list []*sliceIntake) *entries {
	var e entries
	for _, slice := range list {
		e.add(slice, 0, slice.len())
	}
	e.sort()
	return &e
}

// Each address may be in another pair of slices: what that takes does not grow with the ports of each pair.
func TestContestsOfManyPairsTakeLittleMemory(t *testing.T) {
	const number, ports = 40, 300
	list := contestedSlices(number, ports, func(int, int) bool { return true })
	pairs := 0
	for i := range list {
		for j := range i {
			list[j].contest(pairs, flagReady)
			list[i].contest(pairs, flagReady|flagLocal)
			pairs++
		}
	}
	e := entriesOfSlices(list)
	count := 0
	w := new(null).count(func() { count = e.countLocal() })
	assert.Equal(t, pairs, count, "each address is local by the own port of a slice")
	assert.Less(t, w.Bytes, 256*(number*ports+2*pairs), "bytes")
	kept := 0
	for _, g := range e.ports.groups {
		kept += cap(g.classes) + 2*cap(g.classBits)
	}
	assert.Less(t, kept, 8*number, "all slices have the same ports, and one more: there are two classes for each")
}

// Many addresses may be in the same slices, which differ in most of their ports: each order of the slices is looked at
// once.
func TestContestsOfTheSameSlicesAreDecidedOnce(t *testing.T) {
	d := testkit.Seeded(1)
	list := contestedSlices(15, 300, func(int, int) bool { return testkit.OneIn(d, 2) })
	for s, slice := range list {
		for n := range 1000 {
			flags := flagReady
			if s == 0 && n%2 == 0 {
				flags |= flagTerminating // it comes last
			}
			if s == len(list)-1 {
				flags |= flagLocal
			}
			slice.contest(n, flags)
		}
	}
	e := entriesOfSlices(list)
	assert.Equal(t, 1000, e.countLocal())
	assert.Len(t, e.ports.contests.known, 2)
}

// Each address may be in slices of its own, which have a different half of thousands of ports each: that takes a step
// for 64 of the ports of each slice.
func TestContestsOfManyOrdersTakeFewSteps(t *testing.T) {
	const number, ports, addresses = 20, 2000, 300
	d := testkit.Seeded(1)
	list := contestedSlices(number, ports, func(int, int) bool { return testkit.OneIn(d, 2) })
	for n := range addresses {
		for s, slice := range list {
			if s == 0 || s == number-1 || testkit.OneIn(d, 2) {
				flags := flagReady
				if s == number-1 {
					flags |= flagLocal
				}
				slice.contest(n, flags)
			}
		}
	}
	e := entriesOfSlices(list)
	assert.Equal(t, addresses, e.countLocal())
	assert.Greater(t, len(e.ports.contests.known), addresses/2, "orders")
	assert.Less(t, e.ports.contests.steps, addresses*number*ports/50)
}

// A slice with few ports takes a step for each of them, however many ports others have.
func TestAContestOfSmallSlicesTakesFewSteps(t *testing.T) {
	const number, ports = 12, 2000
	d := testkit.Seeded(1)
	list := contestedSlices(number, ports, func(slice, _ int) bool { return slice < number-2 && testkit.OneIn(d, 2) })
	for n := range 2 {
		list[number-2].contest(n, flagReady)
		list[number-1].contest(n, flagReady|flagLocal)
	}
	e := entriesOfSlices(list)
	assert.Equal(t, 2, e.countLocal())
	assert.Equal(t, 2, e.ports.contests.steps)
	assert.Greater(t, len(e.ports.contests.won), 8, "words of classes")
	assert.False(t, slices.ContainsFunc(e.ports.contests.won, func(w uint64) bool { return w != 0 }),
		"nothing is left of a contest")
}
