package wire

import (
	"fmt"
	"net/netip"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Nearly everything in a full state is services and endpoints. They are decoded from the wire into the model's values,
// because making a message of each first takes several times as long. Everything else goes through messages.

// Numbers of the fields that split takes out. They are those of remote.proto.
const (
	updateServices    = 6
	updateOwn         = 8
	nodePartEndpoints = 3
)

// tag is the number of a field and how it is encoded, as on the wire.
type tag uint64

// How fields are encoded. The tag of field 5, if it is a number, is 5<<3 | isNumber.
const (
	isNumber = tag(protowire.VarintType)
	isFixed  = tag(protowire.Fixed64Type)
	isBytes  = tag(protowire.BytesType)
)

// Tags of the fields that are decoded here.
const (
	changeNamespace = 1<<3 | isBytes
	changeName      = 2<<3 | isBytes
	changeDeleted   = 3<<3 | isNumber
	changeService   = 4<<3 | isBytes
	changeWhole     = 5<<3 | isNumber
	changeEndpoints = 6<<3 | isBytes
	changeRemoved   = 7<<3 | isBytes

	endpointPort       = 1<<3 | isBytes
	endpointProtocol   = 2<<3 | isNumber
	endpointAddress    = 3<<3 | isBytes
	endpointTargetPort = 4<<3 | isNumber
	endpointNode       = 5<<3 | isBytes
	endpointSets       = 6<<3 | isNumber
	endpointLocal      = 7<<3 | isNumber
	endpointConditions = 8<<3 | isNumber
	endpointDetails    = 9<<3 | isBytes
)

// Message is an encoded Update, as a client receives it.
type Message []byte

// ClientCodec keeps an Update as it is, and treats other messages as protobuf does.
type ClientCodec struct{ Codec }

// Unmarshal implements encoding.CodecV2.
func (c ClientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if u, ok := v.(*Message); ok {
		*u = data.Materialize()
		return nil
	}
	return c.Codec.Unmarshal(data, v)
}

// part is a field of bytes that split takes out of a message, and where its values go.
type part struct {
	field  protowire.Number
	values *[][]byte
}

// split takes some fields out of an encoded message, as they are on the wire. The rest of the message goes into m.
func split(b []byte, m proto.Message, parts ...part) error {
	rest, from, all := []byte(nil), 0, b // from: what has not been taken goes from there to b
	for len(b) > 0 {
		field, wire, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(field, wire, b[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		at := len(all) - len(b)
		if wire == protowire.BytesType {
			if i := slices.IndexFunc(parts, func(p part) bool { return p.field == field }); i >= 0 {
				value, _ := protowire.ConsumeBytes(b[tag:])
				*parts[i].values = append(*parts[i].values, value)
				rest = append(rest, all[from:at]...)
				from = at + tag + n
			}
		}
		b = b[tag+n:]
	}
	if from == 0 {
		return proto.Unmarshal(all, m)
	}
	return proto.Unmarshal(append(rest, all[from:]...), m)
}

// fieldReader reads the fields of a message. It begins with rest, and ends with the first error, which may be one that
// its caller has set.
type fieldReader struct {
	tag   tag
	n     uint64 // the value of a field that is a number
	bytes []byte // the value of any other one that is not passed over
	rest  []byte
	err   error
}

// next goes on to the next field, and returns false at the end. Nearly all tags, numbers and lengths are a single byte.
func (r *fieldReader) next() bool {
	if b := r.rest; len(b) >= 2 && b[0] >= 1<<3 && b[0]|b[1] < 0x80 && r.err == nil {
		t, size := tag(b[0]), 2+int(b[1])
		switch {
		case t&7 == isNumber:
			r.tag, r.n, r.rest = t, uint64(b[1]), b[2:]
			return true
		case t&7 == isBytes && size <= len(b):
			r.tag, r.bytes, r.rest = t, b[2:size], b[size:]
			return true
		}
	}
	return r.nextOfAnySize()
}

func (r *fieldReader) nextOfAnySize() bool {
	if len(r.rest) == 0 || r.err != nil {
		return false
	}
	field, wire, size := protowire.ConsumeTag(r.rest)
	if size < 0 {
		r.err = protowire.ParseError(size)
		return false
	}
	if field > protowire.MaxValidNumber { // ConsumeTag lets it pass
		r.err = fmt.Errorf("field number %d is too large", field)
		return false
	}
	b := r.rest[size:]
	switch wire {
	case protowire.VarintType:
		r.n, size = protowire.ConsumeVarint(b)
	case protowire.Fixed64Type:
		r.n, size = protowire.ConsumeFixed64(b)
	case protowire.BytesType:
		r.bytes, size = protowire.ConsumeBytes(b)
	default: // the caller passes over it
		size = protowire.ConsumeFieldValue(field, wire, b)
	}
	if size < 0 {
		r.err = protowire.ParseError(size)
		return false
	}
	r.tag, r.rest = tag(field)<<3|tag(wire), b[size:]
	return true
}

// join adds to a message within a message, which may come in pieces: it is their sum. One that is there is not nil.
// Each piece has to be complete by itself.
func join(to *[]byte, piece []byte) error {
	if *to == nil {
		*to = slices.Clip(piece) // what follows it in the message stays as it is
		return nil
	}
	if cap(*to) == len(*to) { // it is still the first one
		if err := complete(*to); err != nil {
			return err
		}
	}
	*to = append(*to, piece...)
	return complete(piece)
}

// complete returns an error if a message ends within a field.
func complete(b []byte) error {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}

// endpointFields is an Endpoint.
type endpointFields struct {
	port, node       string
	protocol         remotev1.Protocol
	address, details []byte
	targetPort, sets uint32
	conditions       uint32
	local            bool
}

// endpointFields decodes an endpoint. It treats unknown and repeated fields as [proto.Unmarshal] does.
func (d *Decoder) endpointFields(b []byte) (e endpointFields, err error) {
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case endpointPort:
			if e.port = d.lastPort; string(r.bytes) != e.port { // nearly all endpoints have the port of the one before
				e.port, r.err = d.string("port", r.bytes)
				d.lastPort = e.port
			}
		case endpointProtocol:
			e.protocol = remotev1.Protocol(r.n)
		case endpointAddress:
			e.address = r.bytes
		case endpointTargetPort:
			e.targetPort = uint32(r.n)
		case endpointNode:
			e.node, r.err = d.string("node", r.bytes)
		case endpointSets:
			e.sets = uint32(r.n)
		case endpointLocal:
			e.local = r.n != 0
		case endpointConditions:
			e.conditions = uint32(r.n)
		case endpointDetails:
			r.err = join(&e.details, r.bytes)
		}
	}
	return e, r.err
}

// string decodes a string that others have as well: they share it.
func (d *Decoder) string(field string, v []byte) (string, error) {
	if known, ok := d.strings[string(v)]; ok {
		return known, nil
	}
	s, err := ownString(field, v)
	if err != nil {
		return "", err
	}
	if d.strings == nil {
		d.strings = map[string]string{}
	}
	d.strings[s] = s
	return s, nil
}

// ownString decodes a string that nothing else has.
func ownString(field string, v []byte) (string, error) {
	if !utf8.Valid(v) {
		return "", fmt.Errorf("%s: %q is not UTF-8", field, v)
	}
	return string(v), nil
}

// key returns the key of an endpoint, and false if its protocol is not known.
func (d *Decoder) key(service model.ServiceName, e *endpointFields) (model.EndpointKey, bool) {
	protocol, known := knownProtocol(e.protocol)
	if !known {
		return model.EndpointKey{}, false
	}
	target := netip.AddrPortFrom(d.address("endpoints.address", e.address), d.port("endpoints.targetPort", e.targetPort))
	return model.EndpointKey{Port: model.PortName{Service: service, Port: e.port, Protocol: protocol},
		Target: target}, true
}

// endpoints decodes endpoints, and leaves out those whose protocol is not known.
func (d *Decoder) endpoints(service model.ServiceName, encoded [][]byte) []*model.Endpoint {
	var out []*model.Endpoint
	for i, b := range encoded {
		e, err := d.endpointFields(b)
		if err != nil {
			d.bad("endpoints", "%v", err)
			return nil
		}
		key, known := d.key(service, &e)
		if !d.known(known) {
			continue
		}
		d.known(e.sets <= allSets && e.conditions <= allConditions)
		if out == nil {
			out = make([]*model.Endpoint, 0, len(encoded)-i)
		}
		ep := d.newEndpoint(len(encoded) - i)
		*ep = model.Endpoint{
			Port: key.Port, Target: key.Target, Node: e.node, Local: e.local,
			Sets:  model.EndpointSets(e.sets & allSets),
			Ready: e.conditions&conditionReady != 0, Serving: e.conditions&conditionServing != 0,
			Terminating: e.conditions&conditionTerminating != 0, Details: d.details(e.details),
		}
		out = append(out, ep)
	}
	d.room = nil
	return out
}

// maxRoom is how many endpoints are allocated at a time. They are of one service and usually live equally long; as long
// as one of them is used, none is freed.
const maxRoom = 16

func (d *Decoder) newEndpoint(needed int) *model.Endpoint {
	if len(d.room) == 0 {
		d.room = make([]model.Endpoint, min(needed, maxRoom))
	}
	e := &d.room[0]
	d.room = d.room[1:]
	return e
}

// details decodes EndpointDetails. There are none as a rule.
func (d *Decoder) details(b []byte) model.Details {
	if b == nil {
		return model.Details{}
	}
	var x remotev1.EndpointDetails
	if err := proto.Unmarshal(b, &x); err != nil {
		d.bad("endpoints.details", "%v", err)
	}
	r := x.GetTargetRef()
	return model.NewDetails(model.EndpointDetails{
		TargetRef: model.TargetRef{Kind: r.GetKind(), Namespace: r.GetNamespace(), Name: r.GetName(), UID: r.GetUid()},
		Hostname:  x.GetHostname(), Zone: x.GetZone(), NodeHints: x.GetNodeHints(), ZoneHints: x.GetZoneHints(),
	})
}
