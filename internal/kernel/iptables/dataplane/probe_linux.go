package dataplane

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// probeNAT checks whether nf_tables can create a chain of type nat. iptables-nft does not check: it lists a missing
// table nat as an empty one, and only the first batch fails.
//
// The probe is a batch without an end message: the kernel checks it, loads modules for it, and reverts it.
func probeNAT(c *nfnetlink.Conn, family byte) error {
	const name = "kube-proxy-lib-probe"
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	var b nfnetlink.Builder
	b.Message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.End()
	b.Message(nft|unix.NFT_MSG_NEWTABLE, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, family, 0)
	b.Text(unix.NFTA_TABLE_NAME, name)
	b.End()
	b.Message(nft|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_ACK, family, 0)
	b.Text(unix.NFTA_CHAIN_TABLE, name)
	b.Text(unix.NFTA_CHAIN_NAME, name)
	hook := b.Open(unix.NFTA_CHAIN_HOOK)
	b.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_PRE_ROUTING)
	priority := int32(-100)
	b.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(priority))
	b.Close(hook)
	b.Text(unix.NFTA_CHAIN_TYPE, "nat")
	b.End()
	if err := c.Send(b.Buf); err != nil {
		return err
	}
	answered := false
	err := c.Answers(func(m nfnetlink.Message) error {
		if m.Type != unix.NLMSG_ERROR {
			return nil
		}
		answered = true
		return m.Err()
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT),
		errors.Is(err, unix.EINVAL):
		return fmt.Errorf("table nat: %w (%w)", ErrNoTable, err)
	case err == nil && !answered:
		return errors.New("no reply from the kernel")
	}
	return err
}
