package dataplane

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Packet is the first packet of a connection, as it reaches the machine's virtual switch.
type Packet struct {
	Source      netip.AddrPort // the client
	Destination netip.AddrPort // before any translation
	Protocol    model.Protocol // the transport protocol
}

// Forwarded is what happens to a packet.
type Forwarded struct {
	// Endpoint is the endpoint that gets it; the zero AddrPort if no load balancer has its destination: then it is left
	// alone.
	Endpoint netip.AddrPort
	// Broken: a load balancer has its destination, and sends it to an endpoint that no longer exists.
	Broken bool
	// SourceKept: the endpoint sees the client, because of DSR. Otherwise it sees the node or the source VIP.
	SourceKept bool
}

// Forward returns what happens to a packet, as HNS is documented and known to forward it. The load balancer of its
// destination, else that of its port on the host's addresses, sends it to the target port of an endpoint, chosen by a
// hash of the connection or, with BySource, of the source address alone. host are the host's addresses.
func (f *Fake) Forward(p Packet, host []netip.Addr) Forwarded {
	f.Lock()
	defer f.Unlock()
	to := p.Destination.Addr()
	family := model.FamilyOf(to)
	lb := f.byKey[Key{family, to, p.Destination.Port(), p.Protocol}]
	if lb == nil && slices.Contains(host, to) {
		lb = f.byKey[Key{family, netip.Addr{}, p.Destination.Port(), p.Protocol}]
	}
	if lb == nil {
		return Forwarded{}
	}
	h := fnv.New32a()
	_, _ = h.Write(p.Source.Addr().AsSlice())
	if lb.Distribution == ByConnection {
		_, _ = h.Write([]byte{byte(p.Source.Port() >> 8), byte(p.Source.Port()), byte(p.Protocol)})
	}
	// FNV's low bits follow the last byte closely: mix.
	sum := h.Sum32()
	sum ^= sum >> 16
	sum *= 0x85ebca6b
	sum ^= sum >> 13
	sum *= 0xc2b2ae35
	sum ^= sum >> 16
	e := f.endpoints[lb.Endpoints[sum%uint32(len(lb.Endpoints))]]
	if e == nil {
		return Forwarded{Broken: true}
	}
	for _, a := range e.IPs {
		if model.FamilyOf(a) == family {
			return Forwarded{Endpoint: netip.AddrPortFrom(a, lb.TargetPort), SourceKept: lb.Flags&DSR != 0}
		}
	}
	return Forwarded{Broken: true}
}
