package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// nodeAddresses follows, in one family, the addresses at which the kernel serves node ports. Flows to node ports at an
// address that the node does not have yet are not rewritten, and stay so: they are checked once the node has gained the
// address.
type nodeAddresses struct {
	noted bool         // the first ones are known; the first pass checks all flows
	known []netip.Addr // of both families, as of the last Sync
	here  []netip.Addr // those of this family that count
	gains map[netip.Addr]*gain
}

// gain is an address that the node has gained lately.
type gain struct {
	times int       // within flapWindow of each other
	last  time.Time // when it was last gained
	due   time.Time // when to check the flows to it; zero if that is done
}

// The flows to an address that is gained and lost again and again are checked at once the first time, then a second
// after it was gained, then two, and so on up to a minute.
const (
	flapWindow = 10 * time.Minute
	flapPause  = time.Second
	flapMost   = time.Minute
)

// note records the addresses as they were before and after a Sync, and returns those that are new. One that was gained
// in between may have been too late for the rules: it counts as new now, and again at the next Sync.
func (n *nodeAddresses) note(before, after []netip.Addr, counts func(netip.Addr) bool) (gained []netip.Addr) {
	if n.noted && slices.Equal(before, n.known) && slices.Equal(after, n.known) {
		return nil
	}
	first, known := !n.noted, make(map[netip.Addr]bool, len(n.known))
	for _, a := range n.known {
		known[a] = true
	}
	n.here = slices.DeleteFunc(slices.Clone(after), func(a netip.Addr) bool { return !counts(a) })
	for _, a := range n.here {
		if !first && !known[a] {
			gained = append(gained, a)
		}
	}
	if n.noted, n.known = true, after; !slices.Equal(before, after) {
		n.known = slices.DeleteFunc(slices.Clone(after), func(a netip.Addr) bool { return !slices.Contains(before, a) })
	}
	return gained
}

// gained makes flows to an address due: at once, or after a pause if it was gained before, within flapWindow.
func (n *nodeAddresses) gained(a netip.Addr) {
	now := time.Now()
	maps.DeleteFunc(n.gains, func(_ netip.Addr, g *gain) bool { return now.Sub(g.last) > flapWindow })
	g := n.gains[a]
	if g == nil {
		if g = (&gain{}); n.gains == nil {
			n.gains = map[netip.Addr]*gain{}
		}
		n.gains[a] = g
	}
	if g.last = now; g.due.IsZero() {
		g.due = now
		if g.times > 0 {
			g.due = now.Add(min(flapPause<<min(g.times-1, 6), flapMost))
		}
	}
	g.times++
}

// next returns when flows to an address that the node has now are to be checked.
func (n *nodeAddresses) next() (at time.Time, due bool) {
	for a, g := range n.gains {
		if !g.due.IsZero() && (!due || g.due.Before(at)) && n.has(a) {
			at, due = g.due, true
		}
	}
	return at, due
}

// take calls f with the addresses to which flows are to be checked now. An address that was lost again waits until it
// is back.
func (n *nodeAddresses) take(now time.Time, f func(netip.Addr)) {
	for a, g := range n.gains {
		if !g.due.IsZero() && !g.due.After(now) && n.has(a) {
			g.due = time.Time{}
			f(a)
		}
	}
}

func (n *nodeAddresses) has(a netip.Addr) bool { return slices.Contains(n.here, a) }

// selectNodePorts selects the flows to the node ports at an address. The kernel cannot filter by IPv6 address, so for
// IPv6 it selects by port instead, if there are at most maxSelections node ports.
func (x *index) selectNodePorts(a netip.Addr, changes *pending) {
	if a.Is4() || len(x.nodePorts) > maxSelections {
		changes.add(Selection{Destination: netip.AddrPortFrom(a, 0)})
		return
	}
	for port := range x.nodePorts {
		changes.add(Selection{Destination: netip.AddrPortFrom(netip.Addr{}, port)})
	}
}

// noteAddresses records the addresses that serve node ports, before and after a Sync. r.mu is held.
func (r *Reconciler) noteAddresses(f *familyState, before, after nodeaddr.Addresses) {
	gained := f.addresses.note(before.IPs, after.IPs, func(a netip.Addr) bool {
		return model.FamilyOf(a) == f.family && (!a.IsLoopback() || a.Is4() && r.opts.LocalhostNodePorts)
	})
	f.index.nodeAddresses = f.addresses.here
	if len(f.index.nodePorts) == 0 {
		return
	}
	for _, a := range gained {
		f.addresses.gained(a)
	}
}
