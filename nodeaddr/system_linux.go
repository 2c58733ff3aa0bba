package nodeaddr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func (s *System) dial(groups uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: s.NetNS, Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return conn, nil
}

// maxDumps bounds how often a dump that was interrupted by a change is tried again at once.
const maxDumps = 5

// Addresses implements [Host].
func (s *System) Addresses() ([]HostAddress, error) {
	conn, err := s.dial(0)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for range maxDumps {
		var list []HostAddress
		if list, err = addresses(conn); err == nil {
			return list, nil
		}
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, err
}

func addresses(conn *netlink.Conn) ([]HostAddress, error) {
	names := map[uint32]string{}
	if err := dump(conn, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), unix.RTM_NEWLINK, func(data []byte) error {
		if len(data) < unix.SizeofIfInfomsg {
			return errShort
		}
		index := binary.NativeEndian.Uint32(data[4:])
		return attributes(data[unix.SizeofIfInfomsg:], func(kind uint16, a *netlink.AttributeDecoder) {
			if kind == unix.IFLA_IFNAME {
				names[index] = a.String()
			}
		})
	}); err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var list []HostAddress
	if err := dump(conn, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), unix.RTM_NEWADDR, func(data []byte) error {
		if len(data) < unix.SizeofIfAddrmsg {
			return errShort
		}
		index := binary.NativeEndian.Uint32(data[4:])
		var local, address netip.Addr
		err := attributes(data[unix.SizeofIfAddrmsg:], func(kind uint16, a *netlink.AttributeDecoder) {
			switch kind {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(a.Bytes())
			case unix.IFA_ADDRESS:
				address, _ = netip.AddrFromSlice(a.Bytes())
			}
		})
		// On a point-to-point interface IFA_ADDRESS is the other end's; IPv6 addresses often have it alone.
		if local.IsValid() {
			address = local
		}
		if address.IsValid() {
			list = append(list, HostAddress{Addr: address.Unmap(), Interface: names[index]})
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	return list, nil
}

var errShort = errors.New("a netlink message is too short")

// dump asks for a list, and calls add with every message of it of a kind.
func dump(conn *netlink.Conn, request uint16, header []byte, kind uint16, add func([]byte) error) error {
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(request), Flags: netlink.Request | netlink.Dump},
		Data:   header,
	})
	if err != nil {
		return err
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return unix.EINTR
		}
		if m.Header.Type != netlink.HeaderType(kind) {
			continue
		}
		if err := add(m.Data); err != nil {
			return err
		}
	}
	return nil
}

func attributes(b []byte, each func(kind uint16, a *netlink.AttributeDecoder)) error {
	a, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for a.Next() {
		each(a.Type(), a)
	}
	return a.Err()
}

// Watch implements [Host], with a subscription to the kernel's notifications.
func (s *System) Watch(ctx context.Context, changed func()) error {
	const groups = 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1)
	conn, err := s.dial(groups)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	changed()
	for {
		_, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			// Some were lost. What they said is in the table all the same.
		case err != nil:
			return fmt.Errorf("waiting for changes of addresses: %w", err)
		}
		changed()
	}
}
