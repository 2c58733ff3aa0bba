package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// maxDumps bounds how often a list that changed while it was read is read again at once.
const maxDumps = 5

// Addresses implements [Host].
func (s *System) Addresses() ([]HostAddress, error) {
	handle, err := s.handle()
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer handle.Close()
	for range maxDumps {
		var list []HostAddress
		if list, err = addresses(handle); err == nil {
			return list, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, err
}

func (s *System) handle() (*netlink.Handle, error) {
	if s.NetNS == 0 {
		return netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	return netlink.NewHandleAt(netns.NsHandle(s.NetNS), unix.NETLINK_ROUTE)
}

func addresses(handle *netlink.Handle) ([]HostAddress, error) {
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
	list := make([]HostAddress, 0, len(addrs))
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			list = append(list, HostAddress{Addr: addr.Unmap(), Interface: names[a.LinkIndex]})
		}
	}
	return list, nil
}

// Watch implements [Host], with a subscription to the kernel's notifications. It fails when the kernel had to drop some.
func (s *System) Watch(ctx context.Context, changed func()) error {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	var failure error // written before updates is closed
	options := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) { failure = err }}
	if s.NetNS != 0 {
		ns := netns.NsHandle(s.NetNS)
		options.Namespace = &ns
	}
	if err := netlink.AddrSubscribeWithOptions(updates, done, options); err != nil {
		return fmt.Errorf("subscribing to changes of addresses: %w", err)
	}
	// The sender ends once it has noticed that done is closed, and nobody else may take what it still sends until then.
	defer func() {
		close(done)
		for range updates {
		}
	}()
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-updates:
			if !ok {
				return fmt.Errorf("waiting for changes of addresses: %w", failure)
			}
			changed()
		}
	}
}
