package nft

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// port is a service port in one family, as it is to be or as it is in force. Its endpoints are sorted at first, then in their
// slots.
type port struct {
	serviceport.Port
	affinity string // the name of its own chains, "" without session affinity
	fronts   []front
	ranges   []addrRange // sources that may use restricted fronts
}

// front is a destination that traffic to a service port comes by.
type front struct {
	claimKey
	*serviceport.Destination
	// lost: another service port has it.
	lost bool
}

// addrRange is a range of addresses, both included.
type addrRange struct{ first, last netip.Addr }

// newPorts returns the ports of a service in one family, without those that nothing leads to and without bad input.
func (c *config) newPorts(ctx context.Context, e *sink.ServiceEntry) []*port {
	var ports []*port
	node := serviceport.Node{Family: c.family, LocalPods: c.localPods.CIDRs}
	node.Each(e, func(sp serviceport.Port) {
		p := &port{Port: sp, fronts: make([]front, len(sp.Destinations))}
		for i := range sp.Destinations {
			d := &sp.Destinations[i]
			p.fronts[i] = front{claimKey: newClaimKey(d, sp.Name.Protocol), Destination: d}
			if d.Restricted && p.ranges == nil {
				p.ranges = mergeRanges(sp.SourceRanges)
			}
		}
		if sp.AffinityTimeout > 0 {
			p.affinity = affinityName(sp.Name)
		}
		ports = append(ports, p)
	}, serviceport.LogSkipped(ctx))
	return ports
}

// affinityName returns a name for the chains of a service port: readable, bounded, and its alone.
func affinityName(n model.PortName) string {
	text := n.Service.Namespace + "/" + n.Service.Name + "/" + strings.ToLower(n.Protocol.String())
	if n.Port != "" {
		text += "/" + n.Port
	}
	sum := sha256.Sum256([]byte(n.Service.Namespace + "\x00" + n.Service.Name + "\x00" + n.Port + "\x00" + n.Protocol.String()))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	return "affinity-" + hash + "-" + identifier(text, 40)
}

// identifier makes text fit to be a part of a name that nft can read: letters, digits, '/', '-', '_' and '.'.
func identifier(text string, limit int) string {
	b := []byte(text[:min(len(text), limit)])
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '/', c == '-', c == '_', c == '.':
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

// mergeRanges returns what prefixes cover as ranges that neither overlap nor touch, sorted.
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

// dispatchOf says what happens to traffic that comes by a front.
func (p *port) dispatchOf(fr *front) dispatch {
	to := func(r model.Route) destination {
		return newDestination(r, len(p.Endpoints(r.Endpoints)), fr.nodePort, p.affinity)
	}
	fromPod, fromNode, other := p.RoutesTo(fr.Kind)
	return dispatch{fromPod: to(fromPod), fromNode: to(fromNode), other: to(other), restricted: fr.Restricted}
}

// frontSets returns the sets of endpoints that traffic by a front is balanced over, by random numbers.
func (p *port) frontSets(fr *front) model.EndpointSets {
	if p.affinity != "" || fr.lost {
		return 0
	}
	fromPod, fromNode, other := p.RoutesTo(fr.Kind)
	return fromPod.Endpoints | fromNode.Endpoints | other.Endpoints
}

// comment names the port in listings.
func (p *port) comment() string { return dp.Escape(p.Name.String(), 120) }
