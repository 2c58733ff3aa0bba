package wire

import (
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Batch is the content of the messages of a batch, in values of the model.
type Batch struct {
	Node     *model.Node // nil: unchanged
	Services [][]Change  // of each message
	OwnReset bool
	Own      []Part
	Triggers model.PerFamily[[]time.Time]
	// Skipped: something unknown was left out, so the digests of the rest are meaningless.
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
	Service        *model.Service // nil: unchanged
	Removed        []model.EndpointKey
	Endpoints      []*model.Endpoint
}

// Apply applies a change of the shared layer to a full state, whose latest snapshot is before.
func (c *Change) Apply(full *sink.FullState, before *sink.Snapshot) {
	if (c.Deleted || c.Whole) && before.NumServices() > 0 { // a reset starts with none
		if known := before.Service(c.Name); known != nil {
			for _, e := range known.Endpoints {
				full.DeleteEndpoint(e.Key())
			}
		}
	}
	if c.Deleted {
		full.DeleteService(c.Name)
		return
	}
	if c.Service != nil {
		full.SetService(c.Service)
	}
	for _, key := range c.Removed {
		full.DeleteEndpoint(key)
	}
	for _, e := range c.Endpoints {
		full.SetEndpoint(e)
	}
}

// Part is a NodePart; nil means that it was deleted.
type Part struct {
	Name model.ServiceName
	Part *localstate.NodePart
}

// Update decodes a message and adds its content to the batch. It returns the message without the changes and parts.
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

// add adds the content of a message, whose changes and parts were taken out, to a batch.
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

// splitUpdate decodes a message except for the changes and parts in it, which it returns encoded.
func splitUpdate(b []byte) (u *remotev1.Update, services, own [][]byte, err error) {
	u = &remotev1.Update{}
	err = split(b, u, part{updateServices, &services}, part{updateOwn, &own})
	return u, services, own, err
}

// change decodes a change of a service. It leaves out endpoints with an unknown protocol.
func (d *Decoder) change(b []byte) Change {
	var c Change
	var namespace, name string
	var service []byte
	endpoints, removed := d.lists[0][:0], d.lists[1][:0]
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isBytes:
			namespace, r.err = d.string("namespace", r.bytes)
		case 2<<3 | isBytes:
			name, r.err = ownString("name", r.bytes)
		case 3<<3 | isNumber:
			c.Deleted = r.n != 0
		case 4<<3 | isBytes:
			r.err = join(&service, r.bytes)
		case 5<<3 | isNumber:
			c.Whole = r.n != 0
		case 6<<3 | isBytes:
			endpoints = append(endpoints, r.bytes)
		case 7<<3 | isBytes:
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
