package nft

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
)

// frontendKey returns the key of a frontend in service-ips or nodeports.
func frontendKey(k frontend.Key) string {
	b := make([]byte, 0, 24)
	if !k.IsNodePort() {
		b = dp.AppendAddr(b, k.Addr)
	}
	return string(dp.AppendPort(dp.AppendProtocol(b, k.Protocol), k.Port))
}

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

// sourceElements say which sources may use a VIP.
func sourceElements(key string, sources []netip.Prefix) []dp.Element {
	var list []dp.Element
	for _, r := range mergeRanges(sources) {
		b := append(dp.AppendAddr([]byte(key), r.first), key...)
		list = append(list, dp.Element{Key: string(dp.AppendAddr(b, r.last))})
	}
	return list
}

func addrElement(a netip.Addr) dp.Element { return dp.Element{Key: string(dp.AppendAddr(nil, a))} }

func hairpinElement(a netip.Addr) dp.Element {
	return dp.Element{Key: string(dp.AppendAddr(dp.AppendAddr(nil, a), a))}
}

// addrRange is a range of addresses, both included.
type addrRange struct{ first, last netip.Addr }

// mergeRanges returns the addresses that prefixes cover as sorted ranges that neither overlap nor touch.
func mergeRanges(prefixes []netip.Prefix) []addrRange {
	ranges := make([]addrRange, 0, len(prefixes))
	for _, p := range prefixes {
		ranges = append(ranges, addrRange{p.Masked().Addr(), lastAddr(p)})
	}
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 && (!merged[n-1].last.Less(r.first) || merged[n-1].last.Next() == r.first) {
			if merged[n-1].last.Less(r.last) {
				merged[n-1].last = r.last
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
