package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// addresses are those of the dummy interface. The packet filter guards an address from before it is added until after
// it is removed.
type addresses struct {
	dataplane dp.Interface
	filter    *filter

	host    []netip.Addr                    // the host's own, sorted: they are not put on the dummy interface
	users   map[netip.Addr]map[*server]bool // what is wanted: the virtual servers that need an address, at least one
	bound   map[netip.Addr]bool             // what is there
	dirty   map[netip.Addr]bool             // where the two may differ
	refused map[netip.Addr]error            // why an address could not be added
	suspect bool                            // another program may have deleted some
}

func newAddresses(d dp.Interface, f *filter) *addresses {
	return &addresses{dataplane: d, filter: f, users: map[netip.Addr]map[*server]bool{}, bound: map[netip.Addr]bool{},
		dirty: map[netip.Addr]bool{}, refused: map[netip.Addr]error{}}
}

// read reads the addresses of the dummy interface.
func (a *addresses) read(ctx context.Context, f model.Family) error {
	list, err := a.dataplane.Addresses(ctx, f)
	if err != nil {
		return err
	}
	clear(a.bound)
	for _, addr := range list {
		a.bound[addr] = true
		a.dirty[addr] = true
	}
	for addr := range a.users {
		a.dirty[addr] = true
	}
	return nil
}

// guards are the elements by which the packet filter protects an address of the dummy interface.
func guards(a netip.Addr) []element {
	return []element{{set: boundIPs, key: rules.AddrKey(a)}, {set: boundToItself, key: rules.HairpinKey(a)}}
}

// guardAll guards the addresses again after the filter's content was forgotten. That includes those that nobody needs:
// their guards go when they are removed.
func (a *addresses) guardAll() {
	for addr := range a.users {
		a.filter.set(guards(addr)...)
	}
	for addr := range a.bound {
		a.filter.set(guards(addr)...)
	}
}

// update notes whether a virtual server needs its address.
func (a *addresses) update(s *server) {
	addr := s.key.Addr
	_, own := slices.BinarySearchFunc(a.host, addr, netip.Addr.Compare)
	needs := s.key.Mark == 0 && !own && (s.owner != nil && !s.blocked || s.exists)
	users := a.users[addr]
	if needs == users[s] {
		return
	}
	a.dirty[addr] = true
	switch {
	case !needs:
		if delete(users, s); len(users) == 0 {
			delete(a.users, addr)
		}
	case users == nil:
		a.users[addr] = map[*server]bool{s: true}
		a.filter.set(guards(addr)...)
	default:
		users[s] = true
	}
}

// add adds the addresses that virtual servers need. One that cannot be added, such as an IPv6 multicast address, does
// not affect the others.
func (a *addresses) add(ctx context.Context) error {
	return a.each(true, func(addr netip.Addr) error {
		if a.bound[addr] {
			return nil
		}
		err := a.dataplane.AddAddress(ctx, addr)
		if err == nil {
			a.bound[addr] = true
			delete(a.refused, addr)
		} else if !concernsAll(err) {
			a.refused[addr] = err
			return nil
		}
		return err
	})
}

// remove removes the addresses that no virtual server needs, and then what guards them.
func (a *addresses) remove(ctx context.Context) error {
	return a.each(false, func(addr netip.Addr) error {
		if a.bound[addr] {
			if err := a.dataplane.DeleteAddress(ctx, addr); err != nil {
				return err
			}
			delete(a.bound, addr)
		}
		a.filter.unset(guards(addr)...)
		delete(a.refused, addr)
		return nil
	})
}

// repair adds the addresses that another program has deleted. It returns how many they were.
func (a *addresses) repair(ctx context.Context, f model.Family) (lost int, err error) {
	if a.suspect = a.suspect || a.dataplane.Drifted(f); !a.suspect {
		return 0, nil
	}
	if err := a.read(ctx, f); err != nil {
		return 0, err
	}
	for addr := range a.users {
		if !a.bound[addr] && a.refused[addr] == nil {
			lost++
		}
	}
	if err := errors.Join(a.add(ctx), logged(ctx, a.remove(ctx))); err != nil {
		return 0, err
	}
	a.suspect = false
	return lost, nil
}

// each applies the dirty addresses that are needed, or those that are not. One that fails stays dirty.
func (a *addresses) each(needed bool, apply func(netip.Addr) error) error {
	var errs failures.List
	for _, addr := range slices.SortedFunc(maps.Keys(a.dirty), netip.Addr.Compare) {
		if needed != (a.users[addr] != nil) {
			continue
		}
		if err := apply(addr); err != nil {
			errs.Add(err)
		} else {
			delete(a.dirty, addr)
		}
	}
	if len(a.dirty) == 0 { // iterating over a map that was once big takes long
		a.dirty = map[netip.Addr]bool{}
	}
	return errs.Err()
}
