package frontend

import (
	"net/netip"
	"slices"
)

// counted is a set of addresses each of which several service ports may ask for. It knows which ones came and went since
// they were last accepted.
type counted struct {
	count   map[netip.Addr]int
	touched map[netip.Addr]bool // whether they had been accepted
}

func newCounted() counted {
	return counted{count: map[netip.Addr]int{}, touched: map[netip.Addr]bool{}}
}

func (c *counted) touch(a netip.Addr) {
	if _, ok := c.touched[a]; !ok {
		c.touched[a] = c.count[a] > 0
	}
}

func (c *counted) add(a netip.Addr) {
	c.touch(a)
	c.count[a]++
}

func (c *counted) remove(a netip.Addr) {
	c.touch(a)
	if c.count[a]--; c.count[a] <= 0 {
		delete(c.count, a)
	}
}

func (c *counted) accept() {
	if len(c.touched) > 64 {
		c.touched = map[netip.Addr]bool{} // clearing costs as much as the map ever held
	} else {
		clear(c.touched)
	}
}

// changes returns what came and went, sorted.
func (c *counted) changes() AddrChanges {
	var changes AddrChanges
	for a, was := range c.touched {
		switch is := c.count[a] > 0; {
		case is && !was:
			changes.Added = append(changes.Added, a)
		case was && !is:
			changes.Removed = append(changes.Removed, a)
		}
	}
	slices.SortFunc(changes.Added, netip.Addr.Compare)
	slices.SortFunc(changes.Removed, netip.Addr.Compare)
	return changes
}

// all returns the addresses, sorted.
func (c *counted) all() []netip.Addr {
	list := make([]netip.Addr, 0, len(c.count))
	for a := range c.count {
		list = append(list, a)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// AddrChanges are addresses that came and went, sorted.
type AddrChanges struct{ Added, Removed []netip.Addr }
