package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// probeNAT asks nf_tables whether it could make a chain of type nat. iptables-nft does not: it lists a table nat that is
// not there as an empty one, and only the first batch fails.
//
// The question is a batch without an end. The kernel checks it, loads modules for it, and takes it back.
func probeNAT(c *netlink.Conn, f model.Family) error {
	family := byte(unix.NFPROTO_IPV4)
	if f == model.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	if err := probeFamily(c, family); err != nil {
		return fmt.Errorf("%v: table nat: %w", f, err)
	}
	return nil
}

func probeFamily(c *netlink.Conn, family byte) error {
	const name = "kube-proxy-lib-probe"
	table, err := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, name) })
	if err != nil {
		return err
	}
	chain, err := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, name)
		e.String(unix.NFTA_CHAIN_NAME, name)
		e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
			e.ByteOrder = binary.BigEndian
			e.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_PRE_ROUTING)
			e.Int32(unix.NFTA_HOOK_PRIORITY, -100)
			return nil
		})
		e.String(unix.NFTA_CHAIN_TYPE, "nat")
	})
	if err != nil {
		return err
	}
	message := func(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, resource byte, data []byte) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request | flags},
			Data: append([]byte{family, unix.NFNETLINK_V0, 0, resource}, data...)}
	}
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err = c.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(nft|unix.NFT_MSG_NEWTABLE, netlink.Create, family, 0, table),
		message(nft|unix.NFT_MSG_NEWCHAIN, netlink.Create|netlink.Acknowledge, family, 0, chain),
	})
	if err == nil {
		_, err = c.Receive()
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (%w)", ErrNoTable, err)
	case err != nil:
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

func attributes(fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	fill(e)
	return e.Encode()
}
