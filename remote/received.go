package remote

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// receivedBatch is what the messages of a batch say, in the model's values.
type receivedBatch struct {
	node     *model.Node // nil: as it was
	services []receivedChange
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

// batch decodes the messages of a batch.
func (d *decoder) batch(updates []*remotev1.Update) (b receivedBatch) {
	for _, u := range updates {
		if u.Node != nil {
			b.node = d.node(u.Node)
		}
		for _, c := range u.Services {
			b.services = append(b.services, d.change(c))
		}
		b.ownReset = b.ownReset || u.OwnReset
		for _, p := range u.Own {
			name, part := d.part(p)
			b.own = append(b.own, receivedPart{name, part})
		}
		for _, t := range u.Triggers {
			i := 0
			if t.Family == uint32(model.IPv6) {
				i = 1
			}
			b.triggers[i] = append(b.triggers[i], time.Unix(0, int64(t.Nanos)))
		}
	}
	return b
}

// change decodes a change of a service, without the endpoints that have a protocol that is not known.
func (d *decoder) change(c *remotev1.ServiceChange) receivedChange {
	out := receivedChange{name: d.name(c.Namespace, c.Name), deleted: c.Deleted, whole: c.Whole}
	if c.Service != nil {
		out.service = d.service(out.name, c.Service)
	}
	for _, e := range c.Removed {
		if key, known := d.key(out.name, e); known {
			out.removed = append(out.removed, key)
		}
	}
	for _, e := range c.Endpoints {
		if endpoint := d.endpoint(out.name, e); endpoint != nil {
			out.endpoints = append(out.endpoints, endpoint)
		}
	}
	return out
}
