package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/nfnetlink"
)

// Counters implements [Interface]. It lists the whole set: an element that the kernel moves meanwhile, because it
// enlarges the hash table, may be left out.
func (n *Netlink) Counters(ctx context.Context, key TableKey, s *Set) (map[string]uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	counters := map[string]uint64{}
	err := n.list(unix.NFT_MSG_GETSETELEM, key.Family, func(m nfnetlink.Message) error {
		for _, v := range nfnetlink.Attributes(attributesOf(m).get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			e := attributes(v)
			packets := e.get(nftaSetElemExpr).get(unix.NFTA_EXPR_DATA).get(unix.NFTA_COUNTER_PACKETS)
			if len(packets) == 8 {
				counters[string(e.get(unix.NFTA_SET_ELEM_KEY).get(unix.NFTA_DATA_VALUE))] = binary.BigEndian.Uint64(packets)
			}
		}
		return nil
	}, key.Name, s.Name)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("counters of %s in table %v: %w", s.Name, key, err)
	}
	return counters, nil
}
