package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nfnetlink"
)

// From linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Source, ctaIPv4Destination = 1, 2
	ctaIPv6Source, ctaIPv6Destination = 3, 4

	ctaProtoNumber          = 1
	ctaProtoSourcePort      = 2
	ctaProtoDestinationPort = 3

	ctaFilterOrigFlags, ctaFilterReplyFlags = 1, 2

	// The kernel's CTA_FILTER_F_CTA_..., which no header exports. The flag for the destination is the next bit.
	filterSourceAddress = 1 << 0
	filterProtoNumber   = 1 << 3
	filterSourcePort    = 1 << 4
)

// entry is a flow of a dump, with what is needed to delete it. It is valid as long as the buffer that holds it.
type entry struct {
	flow  Flow
	tuple []byte // the value of CTA_TUPLE_ORIG
	id    []byte // the value of CTA_ID
}

// parseEntry parses a flow. ok is false unless it is a UDP flow in the default zone.
func parseEntry(m nfnetlink.Message) (e entry, ok bool) {
	var original, reply tuple
	for kind, v := range m.Attributes() {
		switch kind {
		case ctaTupleOrig:
			if original, ok = parseTuple(v); !ok {
				return entry{}, false
			}
			e.tuple = v
		case ctaTupleReply:
			if reply, ok = parseTuple(v); !ok {
				return entry{}, false
			}
		case ctaID:
			e.id = v
		case ctaZone:
			return entry{}, false
		}
	}
	if !e.deletable() || !original.valid() || !reply.valid() {
		return entry{}, false
	}
	e.flow = Flow{
		Source: original.source, Destination: original.destination,
		ReplySource: reply.source, ReplyDestination: reply.destination,
	}
	return e, true
}

// deletable reports whether a delete request would identify the entry completely.
func (e entry) deletable() bool { return len(e.tuple) > 0 && len(e.id) > 0 }

// tuple is one direction of a UDP flow.
type tuple struct{ source, destination netip.AddrPort }

func (t tuple) valid() bool { return t.source.IsValid() && t.destination.IsValid() }

// parseTuple parses a direction. ok is false for protocols other than UDP and zones other than the default one.
func parseTuple(b []byte) (t tuple, ok bool) {
	var source, destination netip.Addr
	var protocol byte
	var sourcePort, destinationPort uint16
	for kind, v := range nfnetlink.Attributes(b) {
		switch kind {
		case ctaTupleZone:
			return tuple{}, false
		case ctaTupleIP:
			for kind, v := range nfnetlink.Attributes(v) {
				switch kind {
				case ctaIPv4Source, ctaIPv6Source:
					source, _ = netip.AddrFromSlice(v)
				case ctaIPv4Destination, ctaIPv6Destination:
					destination, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for kind, v := range nfnetlink.Attributes(v) {
				switch {
				case kind == ctaProtoNumber && len(v) == 1:
					protocol = v[0]
				case kind == ctaProtoSourcePort:
					sourcePort = nfnetlink.Uint16(v)
				case kind == ctaProtoDestinationPort:
					destinationPort = nfnetlink.Uint16(v)
				}
			}
		}
	}
	t = tuple{netip.AddrPortFrom(source, sourcePort), netip.AddrPortFrom(destination, destinationPort)}
	return t, protocol == unix.IPPROTO_UDP
}

// udpFilter limits a dump request to the UDP flows of a selection. Kernels before 5.8 ignore or reject the filter.
func udpFilter(s Selection) func(*nfnetlink.Builder) {
	return func(b *nfnetlink.Builder) {
		original := filterTuple(b, ctaTupleOrig, netip.AddrPort{}, s.Destination)
		var reply uint32
		if s.ReplySource != (netip.AddrPort{}) {
			reply = filterTuple(b, ctaTupleReply, s.ReplySource, netip.AddrPort{})
		}
		filter := b.Open(ctaFilter)
		b.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, original))
		if reply != 0 {
			b.Bytes(ctaFilterReplyFlags, binary.NativeEndian.AppendUint32(nil, reply))
		}
		b.Close(filter)
	}
}

// filterTuple adds the values that one direction of the flows has to match, and returns the flags of the fields that it
// set.
func filterTuple(b *nfnetlink.Builder, kind uint16, source, destination netip.AddrPort) (flags uint32) {
	addresses := [2]uint16{ctaIPv4Source, ctaIPv4Destination}
	if source.Addr().Is6() || destination.Addr().Is6() {
		addresses = [2]uint16{ctaIPv6Source, ctaIPv6Destination}
	}
	whole := b.Open(kind)
	if source.Addr().IsValid() || destination.Addr().IsValid() {
		ip := b.Open(ctaTupleIP)
		for i, a := range []netip.AddrPort{source, destination} {
			if a.Addr().IsValid() {
				b.Bytes(addresses[i], a.Addr().AsSlice())
				flags |= filterSourceAddress << i
			}
		}
		b.Close(ip)
	}
	protocol := b.Open(ctaTupleProto)
	b.Bytes(ctaProtoNumber, []byte{unix.IPPROTO_UDP})
	flags |= filterProtoNumber
	for i, a := range []netip.AddrPort{source, destination} {
		if a.Port() != 0 {
			b.Uint16(ctaProtoSourcePort+uint16(i), a.Port())
			flags |= filterSourcePort << i
		}
	}
	b.Close(protocol)
	b.Close(whole)
	return flags
}
