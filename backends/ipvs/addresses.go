package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// addresses are the service addresses on the dummy interface, and those of other machines, which are not put there. The
// packet filter guards an address from before it is added until after it is removed. When an address changes from one
// kind to the other, packets reach its virtual servers by the old way until they do by the new one.
type addresses struct {
	dataplane dp.Interface
	filter    *filter
	others    *others

	host     []netip.Addr          // the host's own, sorted: they are not put on the dummy interface
	users    map[netip.Addr]*users // what is wanted: the virtual servers that need an address, at least one
	bound    map[netip.Addr]bool   // what is there
	dirty    map[netip.Addr]keys   // where the two may differ, with the virtual servers that have changed
	external map[netip.Addr]bool   // with users that are not virtual servers of cluster IPs
	refused  map[netip.Addr]error  // why an address could not be added
	changed  map[netip.Addr]bool   // where refused has changed
	suspect  bool                  // another program may have deleted some
	looked   int                   // virtual servers looked at, for tests

	undeleted failures.Lines // about what could not be removed
}

// users are the virtual servers that need an address. There may be tens of thousands, so a change of one, or of whose
// the address is, does not look at all of them.
type users struct {
	all        map[dp.ServerKey]user
	clusterIPs int // how many are virtual servers of cluster IPs
}

type user struct {
	*server
	isClusterIP bool // as last counted
}

func (u *users) needed(key dp.ServerKey) bool {
	_, is := u.all[key]
	return is
}

type keys map[dp.ServerKey]bool

func newAddresses(d dp.Interface, f *filter, o *others) *addresses {
	return &addresses{dataplane: d, filter: f, others: o, users: map[netip.Addr]*users{}, bound: map[netip.Addr]bool{},
		dirty: map[netip.Addr]keys{}, external: map[netip.Addr]bool{}, refused: map[netip.Addr]error{},
		changed: map[netip.Addr]bool{}}
}

// touch notes that an address, and virtual servers there, may not be as they are wanted.
func (a *addresses) touch(addr netip.Addr, list ...dp.ServerKey) {
	if a.dirty[addr] == nil {
		a.dirty[addr] = keys{}
	}
	for _, key := range list {
		a.dirty[addr][key] = true
	}
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
		a.touch(addr)
	}
	for addr := range a.users {
		a.touch(addr)
	}
	for addr := range a.others.ports {
		a.touch(addr)
	}
	return nil
}

// guards are the elements by which the packet filter protects an address of the dummy interface.
func guards(a netip.Addr) []element {
	return []element{{set: boundIPs, key: rules.AddrKey(a)}, {set: boundToItself, key: rules.HairpinKey(a)}}
}

// guardAll guards the addresses again after the filter's content was forgotten. That includes those that no virtual
// server needs: their guards go when they are removed.
func (a *addresses) guardAll() {
	a.others.markAll(a.filter)
	for addr := range a.users {
		a.prepare(addr)
	}
	for addr := range a.bound {
		a.filter.set(guards(addr)...)
	}
}

// prepare adds to the filter what an address needs before it is applied.
func (a *addresses) prepare(addr netip.Addr) {
	u := a.users[addr]
	switch {
	case u == nil:
	case !a.belongsToOthers(addr):
		a.filter.set(guards(addr)...)
	case a.takenByPort(addr):
		for key := range a.dirty[addr] {
			a.take(u, key)
		}
	default:
		for key := range u.all {
			a.take(u, key)
		}
	}
}

func (a *addresses) take(u *users, key dp.ServerKey) {
	if a.looked++; u.needed(key) {
		a.others.takePort(a.filter, key)
	}
}

// prepareAll prepares the addresses that may have changed.
func (a *addresses) prepareAll() {
	for addr := range a.dirty {
		a.prepare(addr)
	}
}

// belongsToOthers reports whether only the ports of virtual servers are taken at an address.
func (a *addresses) belongsToOthers(addr netip.Addr) bool {
	if u := a.users[addr]; u != nil && u.clusterIPs > 0 {
		return false
	}
	return a.others.have(addr, a.bound[addr])
}

// takenByPort reports whether only the ports of virtual servers have been taken at an address.
func (a *addresses) takenByPort(addr netip.Addr) bool {
	return a.others.ports[addr] != nil && !a.bound[addr]
}

// follow updates which addresses are other machines'. It reports whether that affects an address that is needed.
func (a *addresses) follow(apiServers []netip.AddrPort) (concerned bool) {
	for addr := range a.others.follow(apiServers, a.external) {
		if a.belongsToOthers(addr) != a.takenByPort(addr) {
			a.touch(addr)
			concerned = true
		}
	}
	return concerned
}

// update notes whether a virtual server needs its address.
func (a *addresses) update(s *server) {
	addr := s.key.Addr
	needs := s.key.Mark == 0 && !has(a.host, addr) && (s.owner != nil && !s.blocked || s.exists)
	u := a.users[addr]
	if u == nil {
		u = &users{all: map[dp.ServerKey]user{}}
	}
	before, needed := u.all[s.key]
	if needs == needed && (!needs || s.clusterIP == before.isClusterIP) {
		return
	}
	a.touch(addr, s.key)
	if delete(u.all, s.key); before.isClusterIP {
		u.clusterIPs--
	}
	if needs {
		u.all[s.key] = user{s, s.clusterIP}
		if s.clusterIP {
			u.clusterIPs++
		}
	}
	if a.users[addr] = u; len(u.all) == 0 {
		delete(a.users, addr)
	}
	if a.external[addr] = true; len(u.all) == u.clusterIPs {
		delete(a.external, addr)
	}
}

// retry makes the next commit try again to add those that could not be added.
func (a *addresses) retry() {
	for addr := range a.refused {
		a.touch(addr)
	}
}

// refuse notes why an address could not be added; nil: it is there, or is not needed.
func (a *addresses) refuse(addr netip.Addr, why error) {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	if text(a.refused[addr]) == text(why) {
		return
	}
	a.changed[addr] = true
	if a.refused[addr] = why; why == nil {
		delete(a.refused, addr)
	}
}

// add adds the addresses that virtual servers need, or makes the kernel deliver packets to those of other machines. One
// that cannot be added, such as an IPv6 multicast address, does not affect the others.
func (a *addresses) add(ctx context.Context) error {
	needed := func(addr netip.Addr) bool { return a.users[addr] != nil }
	return a.each(needed, func(addr netip.Addr) (err error) {
		if a.belongsToOthers(addr) {
			err = a.others.deliver(ctx, a.dataplane)
		} else if !a.bound[addr] {
			if err = a.dataplane.AddAddress(ctx, addr); err == nil {
				a.bound[addr] = true
			}
		}
		if err != nil && concernsAll(err) {
			return err
		}
		a.refuse(addr, err)
		return nil
	}, func(addr netip.Addr) bool { return !a.mayLeave(addr) })
}

// mayLeave reports whether something of an address may have to be removed.
func (a *addresses) mayLeave(addr netip.Addr) bool {
	return a.users[addr] == nil || a.belongsToOthers(addr) || a.others.ports[addr] != nil
}

// remove removes the addresses that no virtual server needs, or that are other machines', and then what guards them. It
// gives up the ports that are no longer taken one by one.
func (a *addresses) remove(ctx context.Context) error {
	err := a.each(a.mayLeave, func(addr netip.Addr) error {
		byPort := a.users[addr] != nil && a.belongsToOthers(addr)
		if a.users[addr] == nil || byPort {
			if a.bound[addr] {
				if err := a.dataplane.DeleteAddress(ctx, addr); err != nil {
					return err
				}
				delete(a.bound, addr)
			}
			a.filter.unset(guards(addr)...)
		}
		u, ports := a.users[addr], a.others.ports[addr]
		if u == nil {
			a.refuse(addr, nil)
		}
		if byPort {
			ports = a.dirty[addr]
		}
		for key := range ports {
			a.looked++
			if u == nil || !u.needed(key) || !byPort && a.bound[addr] {
				a.others.releasePort(a.filter, key)
			}
		}
		return nil
	}, func(netip.Addr) bool { return true })
	if len(a.others.ports) == 0 {
		err = errors.Join(err, a.others.deliver(ctx, a.dataplane))
	}
	return err
}

// repair adds the addresses that another program has deleted. It returns how many they were.
func (a *addresses) repair(ctx context.Context, f model.Family) (lost int, err error) {
	if a.suspect = a.suspect || a.dataplane.Drifted(f); !a.suspect {
		return 0, nil
	}
	if err := a.read(ctx, f); err != nil {
		return 0, err
	}
	a.prepareAll()
	for addr := range a.users {
		if !a.bound[addr] && a.refused[addr] == nil && a.others.ports[addr] == nil {
			lost++
		}
	}
	if err := errors.Join(a.add(ctx), logged(ctx, &a.undeleted, a.remove(ctx))); err != nil {
		return 0, err
	}
	a.suspect = false
	return lost, nil
}

// each applies dirty addresses of a kind. One that is not done, or fails, stays dirty.
func (a *addresses) each(kind func(netip.Addr) bool, apply func(netip.Addr) error, done func(netip.Addr) bool) error {
	var errs failures.List
	for _, addr := range slices.SortedFunc(maps.Keys(a.dirty), netip.Addr.Compare) {
		if !kind(addr) {
			continue
		}
		if err := apply(addr); err != nil {
			errs.Add(err)
		} else if done(addr) {
			delete(a.dirty, addr)
		}
	}
	if len(a.dirty) == 0 { // iterating over a map that was once big takes long
		a.dirty = map[netip.Addr]keys{}
	}
	return errs.Err()
}
