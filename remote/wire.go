package remote

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

// Nearly everything in a full state is endpoints. They are decoded from the wire into the model's values, because
// making a message of each first takes several times as long. Everything else goes through messages.

// Numbers of the fields that hold the changes, parts and endpoints. They are those of remote.proto.
const (
	updateServices     = 6
	updateOwn          = 8
	changeEndpoints    = 6
	changeRemoved      = 7
	nodePartEndpoints  = 3
	endpointPort       = 1
	endpointProtocol   = 2
	endpointAddress    = 3
	endpointTargetPort = 4
	endpointNode       = 5
	endpointSets       = 6
	endpointLocal      = 7
	endpointConditions = 8
	endpointDetails    = 9
)

// wireUpdate is an encoded Update, as a client receives it.
type wireUpdate []byte

// clientCodec keeps an Update as it is, and treats other messages as protobuf does.
type clientCodec struct{ codec }

func (c clientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if u, ok := v.(*wireUpdate); ok {
		*u = data.Materialize()
		return nil
	}
	return c.codec.Unmarshal(data, v)
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
func (d *decoder) endpointFields(b []byte) (e endpointFields, err error) {
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return e, protowire.ParseError(n)
		}
		if field > protowire.MaxValidNumber { // ConsumeTag lets it pass
			return e, fmt.Errorf("field number %d is too large", field)
		}
		b = b[n:]
		switch wire {
		case protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(b); n >= 0 {
				e.number(field, v)
			}
		case protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				err = d.text(&e, field, v)
			}
		default:
			n = protowire.ConsumeFieldValue(field, wire, b)
		}
		if n < 0 {
			return e, protowire.ParseError(n)
		}
		if err != nil {
			return e, err
		}
		b = b[n:]
	}
	return e, nil
}

func (e *endpointFields) number(field protowire.Number, v uint64) {
	switch field {
	case endpointProtocol:
		e.protocol = remotev1.Protocol(v)
	case endpointTargetPort:
		e.targetPort = uint32(v)
	case endpointSets:
		e.sets = uint32(v)
	case endpointLocal:
		e.local = v != 0
	case endpointConditions:
		e.conditions = uint32(v)
	}
}

func (d *decoder) text(e *endpointFields, field protowire.Number, v []byte) error {
	switch field {
	case endpointPort:
		return d.string(&e.port, "port", v)
	case endpointNode:
		return d.string(&e.node, "node", v)
	case endpointAddress:
		e.address = v
	case endpointDetails:
		e.details = slices.Concat(e.details, v) // in pieces, it is their sum
		if e.details == nil {
			e.details = []byte{}
		}
	}
	return nil
}

// string decodes a string that other endpoints have as well: they share it.
func (d *decoder) string(to *string, field string, v []byte) error {
	known, ok := d.strings[string(v)]
	if !ok {
		if !utf8.Valid(v) {
			return fmt.Errorf("%s: %q is not UTF-8", field, v)
		}
		if d.strings == nil {
			d.strings = map[string]string{}
		}
		known = string(v)
		d.strings[known] = known
	}
	*to = known
	return nil
}

// key returns the key of an endpoint, and false if its protocol is not known.
func (d *decoder) key(service model.ServiceName, e *endpointFields) (model.EndpointKey, bool) {
	protocol, known := knownProtocol(e.protocol)
	if !known {
		return model.EndpointKey{}, false
	}
	target := netip.AddrPortFrom(d.address("endpoints.address", e.address), d.port("endpoints.targetPort", e.targetPort))
	return model.EndpointKey{Port: model.PortName{Service: service, Port: e.port, Protocol: protocol},
		Target: target}, true
}

// endpoints decodes endpoints, and leaves out those whose protocol is not known.
func (d *decoder) endpoints(service model.ServiceName, encoded [][]byte) []*model.Endpoint {
	var out []*model.Endpoint
	for i, b := range encoded {
		e, err := d.endpointFields(b)
		if err != nil {
			d.bad("endpoints", "%v", err)
			return nil
		}
		key, known := d.key(service, &e)
		if !known {
			continue
		}
		if out == nil {
			out = make([]*model.Endpoint, 0, len(encoded)-i)
		}
		ep := d.newEndpoint(len(encoded) - i)
		*ep = model.Endpoint{
			Port: key.Port, Target: key.Target, Node: e.node, Local: e.local,
			Sets:  model.EndpointSets(e.sets) & (model.ClusterSet | model.LocalSet),
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
const maxRoom = 8

func (d *decoder) newEndpoint(needed int) *model.Endpoint {
	if len(d.room) == 0 {
		d.room = make([]model.Endpoint, min(needed, maxRoom))
	}
	e := &d.room[0]
	d.room = d.room[1:]
	return e
}

// details decodes EndpointDetails. There are none as a rule.
func (d *decoder) details(b []byte) model.Details {
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
