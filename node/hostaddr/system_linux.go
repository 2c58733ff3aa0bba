package hostaddr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/addrwatch"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// maxDumps limits how often a list that changed during the dump is read again at once.
const maxDumps = 5

// Addresses implements [nodeaddr.Host].
func (s *System) Addresses() ([]nodeaddr.HostAddress, error) {
	handle, err := s.handle()
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	var list []nodeaddr.HostAddress
	err = addrwatch.Dump(maxDumps, func() (err error) {
		list, err = s.addresses(handle)
		return err
	})
	return list, err
}

func (s *System) handle() (*netlink.Handle, error) {
	if s.NetNS == 0 {
		return netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	return netlink.NewHandleAt(netns.NsHandle(s.NetNS), unix.NETLINK_ROUTE)
}

func (s *System) addresses(handle *netlink.Handle) ([]nodeaddr.HostAddress, error) {
	links, err := handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	list := make([]nodeaddr.HostAddress, 0, len(addrs))
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !slices.Contains(s.ExcludeInterfaces, names[a.LinkIndex]) {
			list = append(list, nodeaddr.HostAddress{Addr: addr.Unmap(), Interface: names[a.LinkIndex]})
		}
	}
	return list, nil
}

// Watch implements [nodeaddr.Host], with a subscription to the kernel's notifications. It fails if the kernel had to
// drop notifications.
func (s *System) Watch(ctx context.Context, changed func()) error {
	updates, err := addrwatch.Subscribe(s.NetNS)
	if err != nil {
		return err
	}
	defer updates.Close()
	changed, stop := combined(changed)
	defer stop()
	changed()
	excluded := map[int]bool{} // by index
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates.Updates:
			if !ok {
				return updates.Err()
			}
			if len(s.ExcludeInterfaces) > 0 && !excluded[u.LinkIndex] {
				excluded[u.LinkIndex] = s.excludes(u.LinkIndex)
			}
			if !excluded[u.LinkIndex] {
				changed()
			}
		}
	}
}

// excludes reports whether an interface is in ExcludeInterfaces; false if the interface is gone.
func (s *System) excludes(index int) bool {
	handle, err := s.handle()
	if err != nil {
		return false
	}
	defer handle.Close()
	link, err := handle.LinkByIndex(index)
	return err == nil && slices.Contains(s.ExcludeInterfaces, link.Attrs().Name)
}
