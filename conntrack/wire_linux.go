package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
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

	ctaFilterOrigFlags = 1
	filterProtoNumber  = 1 << 3 // the kernel's CTA_FILTER_F_CTA_PROTO_NUM, which no header has

	nfgenLen            = 4
	attributeHeaderLen  = 4
	attributeTypeMask   = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	nestedAttributeFlag = unix.NLA_F_NESTED
)

// entry is a flow of a dump, with what it takes to delete it. It is valid as long as the buffer it was read into.
type entry struct {
	flow  Flow
	tuple []byte // the CTA_TUPLE_ORIG attribute, whole
	id    []byte // the CTA_ID attribute, whole
}

// parseEntry reads a flow. ok is false for what is not a UDP flow in the default zone.
func parseEntry(data []byte) (e entry, ok bool) {
	if len(data) < nfgenLen {
		return entry{}, false
	}
	var original, reply tuple
	for b := data[nfgenLen:]; ; {
		a, rest, more := nextAttribute(b)
		if !more {
			break
		}
		switch a.kind {
		case ctaTupleOrig:
			original, ok = parseTuple(a.value)
			if !ok {
				return entry{}, false
			}
			e.tuple = a.whole
		case ctaTupleReply:
			if reply, ok = parseTuple(a.value); !ok {
				return entry{}, false
			}
		case ctaID:
			e.id = a.whole
		case ctaZone:
			return entry{}, false
		}
		b = rest
	}
	if e.tuple == nil || e.id == nil || !original.valid() || !reply.valid() {
		return entry{}, false
	}
	e.flow = Flow{
		Source: original.source, Destination: original.destination,
		ReplySource: reply.source, ReplyDestination: reply.destination,
	}
	return e, true
}

// tuple is one direction of a UDP flow.
type tuple struct{ source, destination netip.AddrPort }

func (t tuple) valid() bool { return t.source.IsValid() && t.destination.IsValid() }

// parseTuple reads a direction. ok is false for other protocols than UDP and other zones than the default one.
func parseTuple(b []byte) (t tuple, ok bool) {
	var source, destination netip.Addr
	var protocol byte
	var sourcePort, destinationPort uint16
	for {
		outer, rest, more := nextAttribute(b)
		if !more {
			break
		}
		if outer.kind == ctaTupleZone {
			return tuple{}, false
		}
		for b := outer.value; outer.kind == ctaTupleIP || outer.kind == ctaTupleProto; {
			a, rest, more := nextAttribute(b)
			if !more {
				break
			}
			if outer.kind == ctaTupleIP {
				switch a.kind {
				case ctaIPv4Source, ctaIPv6Source:
					source, _ = netip.AddrFromSlice(a.value)
				case ctaIPv4Destination, ctaIPv6Destination:
					destination, _ = netip.AddrFromSlice(a.value)
				}
			} else {
				switch {
				case a.kind == ctaProtoNumber && len(a.value) == 1:
					protocol = a.value[0]
				case a.kind == ctaProtoSourcePort && len(a.value) == 2:
					sourcePort = binary.BigEndian.Uint16(a.value)
				case a.kind == ctaProtoDestinationPort && len(a.value) == 2:
					destinationPort = binary.BigEndian.Uint16(a.value)
				}
			}
			b = rest
		}
		b = rest
	}
	t = tuple{netip.AddrPortFrom(source, sourcePort), netip.AddrPortFrom(destination, destinationPort)}
	return t, protocol == unix.IPPROTO_UDP
}

// attribute is a netlink attribute.
type attribute struct {
	kind  uint16
	value []byte
	whole []byte // with header and padding
}

func nextAttribute(b []byte) (a attribute, rest []byte, ok bool) {
	if len(b) < attributeHeaderLen {
		return attribute{}, nil, false
	}
	length := int(binary.NativeEndian.Uint16(b))
	if length < attributeHeaderLen || length > len(b) {
		return attribute{}, nil, false
	}
	padded := min(align(length), len(b))
	return attribute{
		kind:  binary.NativeEndian.Uint16(b[2:]) & attributeTypeMask,
		value: b[attributeHeaderLen:length],
		whole: b[:padded],
	}, b[padded:], true
}

// dumpRequest asks for all the flows of a family that a filter lets through, if there is one.
func dumpRequest(family model.Family, filter func([]byte) []byte) []byte {
	b := appendHeader(nil, ctGet, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, family)
	if filter != nil {
		b = filter(b)
	}
	return finish(b, 0)
}

// udpFilter adds to a request for a dump that it is about UDP flows only. Kernels before 5.8 ignore or refuse it.
func udpFilter(b []byte) []byte {
	b = appendNested(b, ctaTupleOrig, func(b []byte) []byte {
		return appendNested(b, ctaTupleProto, func(b []byte) []byte {
			return appendAttribute(b, ctaProtoNumber, []byte{unix.IPPROTO_UDP})
		})
	})
	return appendNested(b, ctaFilter, func(b []byte) []byte {
		return appendAttribute(b, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtoNumber))
	})
}

// appendDelete adds a request to delete one flow. A delete without a tuple would flush the whole table: an entry always has
// one, and without it no request is made.
func appendDelete(b []byte, family model.Family, e entry) []byte {
	if len(e.tuple) <= attributeHeaderLen {
		return b
	}
	start := len(b)
	b = appendHeader(b, ctDelete, unix.NLM_F_REQUEST, family)
	b = append(b, e.tuple...)
	b = append(b, e.id...)
	return finish(b, start)
}

// appendHeader adds the header of a message, whose length finish fills in.
func appendHeader(b []byte, kind, flags uint16, family model.Family) []byte {
	b = append(b, make([]byte, unix.NLMSG_HDRLEN+nfgenLen)...)
	header := b[len(b)-unix.NLMSG_HDRLEN-nfgenLen:]
	binary.NativeEndian.PutUint16(header[4:], kind)
	setFlags(header, flags)
	header[unix.NLMSG_HDRLEN] = unix.AF_INET
	if family == model.IPv6 {
		header[unix.NLMSG_HDRLEN] = unix.AF_INET6
	}
	return b
}

func finish(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

func setFlags(message []byte, flags uint16) { binary.NativeEndian.PutUint16(message[6:], flags) }

func setSequence(message []byte, sequence uint32) {
	binary.NativeEndian.PutUint32(message[8:], sequence)
}

func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeaderLen+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func appendNested(b []byte, kind uint16, add func([]byte) []byte) []byte {
	return appendAttribute(b, kind|nestedAttributeFlag, add(nil))
}
