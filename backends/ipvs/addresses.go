package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
)

// guards are the elements by which the packet filter protects an address of the dummy interface.
func guards(a netip.Addr) []element {
	return []element{{boundIPs, rules.AddrKey(a)}, {boundToItself, rules.AddrKey(a, a)}}
}

func (f *family) guard(a netip.Addr) {
	for _, e := range guards(a) {
		f.filter.set(e, "")
	}
}

func (f *family) unguard(a netip.Addr) {
	for _, e := range guards(a) {
		f.filter.unset(e)
	}
}

// count notes which virtual servers need an address on the dummy interface.
func (f *family) count(s *server) {
	a := s.key.Addr
	needs := s.key.Mark == 0 && !f.hostAddrs[a] && (s.wanted || s.exists)
	users := f.users[a]
	switch {
	case needs == users[s]:
		return
	case !needs:
		if delete(users, s); len(users) == 0 {
			delete(f.users, a)
		}
	case users == nil:
		f.users[a] = map[*server]bool{s: true}
	default:
		users[s] = true
	}
	f.dirtyAddrs[a] = true
}

// addAddresses puts addresses on the dummy interface. One that the kernel refuses, such as an IPv6 multicast address,
// does not affect the others.
func (f *family) addAddresses(ctx context.Context) error {
	var errs failures.List
	for _, a := range slices.SortedFunc(maps.Keys(f.dirtyAddrs), netip.Addr.Compare) {
		if len(f.users[a]) == 0 {
			continue
		}
		if !f.bound[a] {
			err := f.dataplane.AddAddress(ctx, a)
			switch {
			case isRefusal(err):
				f.refusedAddrs[a] = err
			case err != nil:
				errs.Add(err)
				continue
			default:
				f.bound[a] = true
				delete(f.refusedAddrs, a)
			}
		}
		delete(f.dirtyAddrs, a)
	}
	return errs.Err()
}

// removeAddresses deletes the addresses of the dummy interface that no virtual server needs, and then their guards in
// the filter.
func (f *family) removeAddresses(ctx context.Context) error {
	var errs failures.List
	for _, a := range slices.SortedFunc(maps.Keys(f.dirtyAddrs), netip.Addr.Compare) {
		if len(f.users[a]) > 0 {
			continue
		}
		if f.bound[a] {
			if err := f.dataplane.DeleteAddress(ctx, a); err != nil {
				errs.Add(err)
				continue
			}
			delete(f.bound, a)
		}
		f.unguard(a)
		delete(f.refusedAddrs, a)
		delete(f.dirtyAddrs, a)
	}
	return errs.Err()
}
