package hostaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/addrwatch"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Addresses implements [nodeaddr.Host].
func (l *Local) Addresses() ([]nodeaddr.HostAddress, error) {
	socket, err := nl.GetNetlinkSocketAt(l.netNS(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	handle := &nl.SocketHandle{Socket: socket}
	defer handle.Close()
	// With strict checks the kernel sends the local table alone. A kernel that does not know them (before 4.20) sends all
	// routes.
	_ = unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	var list []nodeaddr.HostAddress
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var addrs []nodeaddr.HostAddress
		err := addrwatch.Dump(maxDumps, func() (err error) {
			addrs, err = dumpLocal(handle, family)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listing local routes: %w", err)
		}
		list = append(list, addrs...)
	}
	return list, nil
}

func (l *Local) netNS() netns.NsHandle {
	if l.NetNS == 0 {
		return netns.None()
	}
	return netns.NsHandle(l.NetNS)
}

// dumpLocal lists the local addresses of a family.
func dumpLocal(handle *nl.SocketHandle, family uint8) ([]nodeaddr.HostAddress, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: handle}
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Table: unix.RT_TABLE_LOCAL}})
	var list []nodeaddr.HostAddress
	var malformed error
	err := request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(message []byte) bool {
		var addr netip.Addr
		if addr, malformed = localAddress(message, family); addr.IsValid() {
			list = append(list, nodeaddr.HostAddress{Addr: addr})
		}
		return malformed == nil
	})
	if errors.Is(err, unix.ENOENT) { // no table: there was never an address
		err = nil
	}
	return list, errors.Join(err, malformed)
}

// localAddress returns the address of a route, invalid if it is not a local route to one address of the family.
func localAddress(message []byte, family uint8) (netip.Addr, error) {
	if len(message) < unix.SizeofRtMsg {
		return netip.Addr{}, errors.New("a truncated message")
	}
	route := nl.DeserializeRtMsg(message)
	if route.Family != family || route.Table != unix.RT_TABLE_LOCAL || route.Type != unix.RTN_LOCAL {
		return netip.Addr{}, nil
	}
	attributes, err := nl.ParseRouteAttr(message[unix.SizeofRtMsg:])
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range attributes {
		if a.Attr.Type != unix.RTA_DST {
			continue
		}
		if addr, ok := netip.AddrFromSlice(a.Value); ok && addr.BitLen() == int(route.Dst_len) {
			return addr, nil
		}
	}
	return netip.Addr{}, nil
}

// Watch implements [nodeaddr.Host], with a subscription to the kernel's notifications of routes, which the kernel
// filters: on a router millions of other routes may be added and removed.
func (l *Local) Watch(ctx context.Context, changed func()) error {
	socket, err := nl.SubscribeAt(l.netNS(), netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("subscribing to changes of routes: %w", err)
	}
	defer socket.Close()
	if err := acceptLocal(socket.GetFd()); err != nil {
		return fmt.Errorf("filtering changes of routes: %w", err)
	}
	defer context.AfterFunc(ctx, socket.Close)()
	changed, stop := combined(changed)
	defer stop()
	changed()
	for {
		// ENOBUFS: the kernel had to drop notifications. What they were about does not matter.
		if _, _, err := socket.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("waiting for changes of routes: %w", err)
		}
		changed()
	}
}

// acceptLocal attaches a filter to a socket that lets only routes of the local table through.
func acceptLocal(fd int) error {
	const table = unix.SizeofNlMsghdr + 4 // of struct rtmsg, after the family, two lengths and the TOS
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: table},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RT_TABLE_LOCAL, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
