package remote

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// receivedBatch is what the messages of a batch say, in the model's values.
type receivedBatch struct {
	node     *model.Node        // nil: as it was
	services [][]receivedChange // of each message
	ownReset bool
	own      []receivedPart
	triggers [2][]time.Time // by family
}

// receivedChange is a ServiceChange.
type receivedChange struct {
	name           model.ServiceName
	deleted, whole bool
	service        *model.Service // nil: as it was
	removed        []model.EndpointKey
	endpoints      []*model.Endpoint
}

// receivedPart is a NodePart; nil is one that is there no more.
type receivedPart struct {
	name model.ServiceName
	part *localstate.NodePart
}

// update decodes a message, and adds what it says to the batch. It returns what is left: all but the changes and parts.
func (d *decoder) update(b []byte, unzip func([]byte) ([]byte, error), to *receivedBatch) (*remotev1.Update, error) {
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
func (d *decoder) add(u *remotev1.Update, services, own [][]byte, to *receivedBatch) {
	if u.Node != nil {
		to.node = d.node(u.Node)
	}
	changes := make([]receivedChange, 0, len(services))
	for _, c := range services {
		changes = append(changes, d.change(c))
	}
	to.services = append(to.services, changes)
	to.ownReset = to.ownReset || u.OwnReset
	for _, p := range own {
		to.own = append(to.own, d.part(p))
	}
	for _, t := range u.Triggers {
		i := 0
		if t.Family == uint32(model.IPv6) {
			i = 1
		}
		to.triggers[i] = append(to.triggers[i], time.Unix(0, int64(t.Nanos)))
	}
}

// splitUpdate decodes a message, but for the changes and parts in it, which it returns as they are on the wire.
func splitUpdate(b []byte) (u *remotev1.Update, services, own [][]byte, err error) {
	u = &remotev1.Update{}
	err = split(b, u, part{updateServices, &services}, part{updateOwn, &own})
	return u, services, own, err
}

// change decodes a change of a service, without the endpoints that have a protocol that is not known.
func (d *decoder) change(b []byte) receivedChange {
	var c receivedChange
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
			c.deleted = r.n != 0
		case changeService:
			join(&service, r.bytes)
		case changeWhole:
			c.whole = r.n != 0
		case changeEndpoints:
			endpoints = append(endpoints, r.bytes)
		case changeRemoved:
			removed = append(removed, r.bytes)
		}
	}
	d.lists = [2][][]byte{endpoints, removed}
	c.name = d.name(namespace, name)
	if r.err != nil {
		d.bad("services", "%v", r.err)
	}
	if service != nil {
		c.service = d.service(c.name, service)
	}
	c.endpoints = d.endpoints(c.name, endpoints)
	for _, e := range d.endpoints(c.name, removed) {
		c.removed = append(c.removed, e.Key())
	}
	return c
}
