package wire

import (
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Batch is what the messages of a batch say, in the model's values.
type Batch struct {
	Node     *model.Node // nil: as it was
	Services [][]Change  // of each message
	OwnReset bool
	Own      []Part
	Triggers model.PerFamily[[]time.Time]
	// Skipped: something was left out that is not known here. Then the digests of what is left say nothing.
	Skipped bool
}

// Any reports whether there is anything in it.
func (b *Batch) Any() bool {
	return b.Node != nil || len(slices.Concat(b.Services...)) > 0 || b.OwnReset || len(b.Own) > 0
}

// Change is a ServiceChange.
type Change struct {
	Name           model.ServiceName
	Deleted, Whole bool
	Service        *model.Service // nil: as it was
	Removed        []model.EndpointKey
	Endpoints      []*model.Endpoint
}

// Part is a NodePart; nil is one that is there no more.
type Part struct {
	Name model.ServiceName
	Part *localstate.NodePart
}

// Update decodes a message, and adds what it says to the batch. It returns what is left: all but the changes and parts.
func (d *Decoder) Update(b []byte, unzip func([]byte) ([]byte, error), to *Batch) (*remotev1.Update, error) {
	u, services, own, err := splitUpdate(b)
	if err != nil {
		return nil, err
	}
	if len(u.Compressed) > 0 {
		inner, err := unzip(u.Compressed)
		if err != nil {
			return nil, err
		}
		first, services, own, err := splitUpdate(inner)
		if err != nil {
			return nil, err
		}
		d.add(first, services, own, to)
	}
	d.add(u, services, own, to)
	return u, nil
}

// add adds to a batch what a message says, whose changes and parts are apart.
func (d *Decoder) add(u *remotev1.Update, services, own [][]byte, to *Batch) {
	if u.Node != nil {
		to.Node = d.node(u.Node)
	}
	changes := make([]Change, 0, len(services))
	for _, c := range services {
		changes = append(changes, d.change(c))
	}
	to.Services = append(to.Services, changes)
	to.OwnReset = to.OwnReset || u.OwnReset
	for _, p := range own {
		to.Own = append(to.Own, d.part(p))
	}
	to.Skipped = to.Skipped || d.skipped
	for _, t := range u.Triggers {
		times := &to.Triggers.IPv4
		if t.Family == uint32(model.IPv6) {
			times = &to.Triggers.IPv6
		}
		*times = append(*times, time.Unix(0, int64(t.Nanos)))
	}
}

// splitUpdate decodes a message, but for the changes and parts in it, which it returns as they are on the wire.
func splitUpdate(b []byte) (u *remotev1.Update, services, own [][]byte, err error) {
	u = &remotev1.Update{}
	err = split(b, u, part{updateServices, &services}, part{updateOwn, &own})
	return u, services, own, err
}

// change decodes a change of a service, without the endpoints that have a protocol that is not known.
func (d *Decoder) change(b []byte) Change {
	var c Change
	var namespace, name string
	var service []byte
	endpoints, removed := d.lists[0][:0], d.lists[1][:0]
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case changeNamespace:
			namespace, r.err = d.string("namespace", r.bytes)
		case changeName:
			name, r.err = ownString("name", r.bytes)
		case changeDeleted:
			c.Deleted = r.n != 0
		case changeService:
			r.err = join(&service, r.bytes)
		case changeWhole:
			c.Whole = r.n != 0
		case changeEndpoints:
			endpoints = append(endpoints, r.bytes)
		case changeRemoved:
			removed = append(removed, r.bytes)
		}
	}
	d.lists = [2][][]byte{endpoints, removed}
	c.Name = d.name(namespace, name)
	if r.err != nil {
		d.bad("services", "%v", r.err)
	}
	if service != nil {
		c.Service = d.service(c.Name, service)
	}
	c.Endpoints = d.endpoints(c.Name, endpoints)
	for _, e := range d.endpoints(c.Name, removed) {
		c.Removed = append(c.Removed, e.Key())
	}
	return c
}
