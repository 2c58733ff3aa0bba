package nft

import (
	"net/netip"

	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
)

// slotElement returns the element for a slot of a frontend, or of a backend set that has a number.
func slotElement(key string, slot int, to netip.AddrPort) dp.Element {
	var b [64]byte
	k := append(b[:0], key...)
	k = dp.AppendNumber(k, uint32(slot))
	n := len(k)
	k = dp.AppendPort(dp.AppendAddr(k, to.Addr()), to.Port())
	s := string(k) // one allocation for both
	return dp.Element{Key: s[:n], Value: s[n:]}
}

func addrElement(a netip.Addr) dp.Element { return dp.Element{Key: rules.AddrKey(a)} }

func hairpinElement(a netip.Addr) dp.Element { return dp.Element{Key: rules.AddrKey(a, a)} }
