package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/addrwatch"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// find returns the dummy interface, nil if there is none.
func (k *Kernel) find() (netlink.Link, error) {
	link, err := k.routes.LinkByName(k.link)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		k.found(0)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", k.link, err)
	}
	if link.Type() != "dummy" {
		return nil, fmt.Errorf("interface %s is a %s, not a dummy interface", k.link, link.Type())
	}
	k.found(link.Attrs().Index)
	return link, nil
}

// found notes the index of the dummy interface, 0 if there is none. A new interface does not have the addresses of an
// old one.
func (k *Kernel) found(index int) {
	if k.dummy != index {
		k.dummy = index
		k.suspectAll()
	}
}

// ensure creates the dummy interface unless it exists, and returns its index.
func (k *Kernel) ensure() (int, error) {
	if k.dummy != 0 && !k.down {
		return k.dummy, nil
	}
	link, err := k.find()
	if err != nil {
		return 0, err
	}
	if link == nil {
		err := k.routes.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: k.link}})
		if errors.Is(err, unix.EOPNOTSUPP) {
			return 0, &MissingModuleError{What: "dummy interfaces", Module: "dummy"}
		}
		if err != nil {
			return 0, fmt.Errorf("add interface %s: %w", k.link, err)
		}
		if link, err = k.find(); err != nil || link == nil {
			return 0, fmt.Errorf("interface %s disappeared again: %w", k.link, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := k.routes.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("interface %s: set up: %w", k.link, err)
		}
	}
	k.down = false
	return k.dummy, nil
}

// maxDumps is how often addresses or rules are listed at most if they change meanwhile.
const maxDumps = 10

// Addresses implements [Interface].
func (k *Kernel) Addresses(ctx context.Context, f model.Family) (list []netip.Addr, err error) {
	err = k.alone(ctx, func() error {
		link, err := k.find()
		if err != nil {
			return err
		}
		// The monitor waits meanwhile: the earlier changes that it reports later do not matter any more.
		k.held[f], k.drifted[f] = nil, false
		if link == nil {
			return nil
		}
		k.down = link.Attrs().Flags&net.FlagUp == 0
		var addrs []netlink.Addr
		err = addrwatch.Dump(maxDumps, func() (err error) {
			addrs, err = k.routes.AddrList(link, int(addressFamily(f)))
			return err
		})
		if err != nil {
			return fmt.Errorf("addresses of %s: %w", k.link, err)
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); ok && !ip.IsLinkLocalUnicast() {
				list = append(list, ip)
				k.hold(ip)
			}
		}
		return nil
	})
	return list, err
}

// address returns an address with the attributes for the kernel. IPv6 addresses are deprecated from the beginning, so
// that none is chosen as a source address.
func address(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		addr.Flags, addr.PreferedLft, addr.ValidLft = unix.IFA_F_NODAD, 0, math.MaxUint32
	}
	return addr
}

// AddAddress implements [Interface].
func (k *Kernel) AddAddress(ctx context.Context, a netip.Addr) error {
	return k.alone(ctx, func() error {
		known := k.dummy != 0
		err := k.addAddress(a)
		if errors.Is(err, unix.ENODEV) && known { // another program has deleted the interface
			k.found(0)
			err = k.addAddress(a)
		}
		if err == nil {
			k.hold(a)
		}
		return err
	})
}

func (k *Kernel) addAddress(a netip.Addr) error {
	index, err := k.ensure()
	if err != nil {
		return err
	}
	err = k.routes.AddrAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, address(a))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %v to %s: %w", a, k.link, err)
	}
	return nil
}

// DeleteAddress implements [Interface].
func (k *Kernel) DeleteAddress(ctx context.Context, a netip.Addr) error {
	return k.alone(ctx, func() error {
		if k.dummy == 0 {
			if link, err := k.find(); err != nil || link == nil {
				return err
			}
		}
		err := k.routes.AddrDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: k.dummy}}, address(a))
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete address %v from %s: %w", a, k.link, err)
		}
		delete(k.held[model.FamilyOf(a)], a)
		return nil
	})
}

// DeleteLink implements [Interface].
func (k *Kernel) DeleteLink(ctx context.Context) error {
	return k.alone(ctx, func() error {
		link, err := k.find()
		if err != nil || link == nil {
			return err
		}
		if err := k.routes.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete interface %s: %w", k.link, err)
		}
		clear(k.held)
		k.found(0)
		return nil
	})
}

// Drift implements [Interface].
func (k *Kernel) Drift() <-chan struct{} { return k.drift }

// Drifted implements [Interface].
func (k *Kernel) Drifted(f model.Family) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.drifted[f]
}

func (k *Kernel) hold(a netip.Addr) {
	f := model.FamilyOf(a)
	if k.held[f] == nil {
		k.held[f] = map[netip.Addr]bool{}
	}
	k.held[f][a] = true
}

// suspectAll notes that addresses of all families may have been deleted.
func (k *Kernel) suspectAll() {
	for f, held := range k.held {
		if len(held) > 0 {
			k.suspect(f)
		}
	}
}

func (k *Kernel) suspect(f model.Family) {
	k.drifted[f] = true
	select {
	case k.drift <- struct{}{}:
	default:
	}
}

// subscribePause is how long to wait after a subscription failed, so that a storm of changes does not keep us busy.
const subscribePause = time.Second

// watch notes deletions of addresses that the dummy interface should have. When the interface is deleted, the kernel
// reports each of its addresses.
func (k *Kernel) watch(ctx context.Context, s *addrwatch.Subscription) {
	for {
		k.follow(ctx, s)
		s.Close()
		for s = nil; s == nil; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(subscribePause):
			}
			s, _ = addrwatch.Subscribe(int(k.ns)) // on an error there still are the resyncs
		}
		k.mu.Lock()
		k.suspectAll() // something was lost
		k.mu.Unlock()
	}
}

// follow follows a subscription until it fails or ctx ends.
func (k *Kernel) follow(ctx context.Context, s *addrwatch.Subscription) {
	for {
		select {
		case <-ctx.Done():
			return
		case u, ok := <-s.Updates:
			if !ok {
				return
			}
			if !u.NewAddr {
				k.noteDeleted(u)
			}
		}
	}
}

func (k *Kernel) noteDeleted(u netlink.AddrUpdate) {
	a, ok := netip.AddrFromSlice(u.LinkAddress.IP)
	if a = a.Unmap(); !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := model.FamilyOf(a); u.LinkIndex == k.dummy && k.held[f][a] {
		k.suspect(f)
	}
}
