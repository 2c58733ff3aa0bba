package nft

import (
	"net/netip"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
)

// slotElement says which endpoint is in a slot of a service address or node port.
func slotElement(key string, slot int, to netip.AddrPort) dp.Element {
	var b [64]byte
	k := append(b[:0], key...)
	k = dp.AppendNumber(k, uint32(slot))
	n := len(k)
	k = dp.AppendPort(dp.AppendAddr(k, to.Addr()), to.Port())
	s := string(k) // one allocation for both
	return dp.Element{Key: s[:n], Value: s[n:]}
}

// sourceElement says that sources in a range may use a VIP.
func sourceElement(key string, r addrRange) dp.Element {
	b := dp.AppendAddr([]byte(key), r.first)
	b = append(b, key...)
	return dp.Element{Key: string(dp.AppendAddr(b, r.last))}
}

func addrElement(a netip.Addr) dp.Element { return dp.Element{Key: string(dp.AppendAddr(nil, a))} }

func hairpinElement(a netip.Addr) dp.Element {
	return dp.Element{Key: string(dp.AppendAddr(dp.AppendAddr(nil, a), a))}
}

// counted is a set of addresses each of which several service ports may want. It remembers which ones came and went.
type counted struct {
	count   map[netip.Addr]int
	touched map[netip.Addr]bool // whether they were there before
}

func newCounted(n int) counted {
	return counted{count: make(map[netip.Addr]int, n), touched: make(map[netip.Addr]bool, n)}
}

func (c *counted) touch(a netip.Addr) {
	if _, ok := c.touched[a]; !ok {
		c.touched[a] = c.count[a] > 0
	}
}

func (c *counted) add(a netip.Addr) {
	c.touch(a)
	c.count[a]++
}

func (c *counted) remove(a netip.Addr) {
	c.touch(a)
	if c.count[a]--; c.count[a] <= 0 {
		delete(c.count, a)
	}
}

// settle notes what came and went since the last time.
func (c *counted) settle(sp *setPlan, element func(netip.Addr) dp.Element) {
	for a, was := range c.touched {
		switch is := c.count[a] > 0; {
		case is && !was:
			sp.add = append(sp.add, element(a))
		case was && !is:
			sp.gone = append(sp.gone, element(a))
		}
	}
	if len(c.touched) > 64 {
		c.touched = map[netip.Addr]bool{} // clearing costs as much as the map ever held
	} else {
		clear(c.touched)
	}
}
