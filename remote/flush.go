package remote

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// note counts a change as pending.
func (v *view) note(c sink.Change) {
	if c.ServiceChanged() {
		v.pending.Services++
		for _, e := range []*sink.ServiceEntry{c.Old, c.New} {
			for _, f := range v.families {
				if e != nil && (len(e.Service.ClusterIPs) == 0 || e.Service.ClusterIP(f).IsValid()) {
					v.pending.Families |= f.Set()
				}
			}
		}
	}
	any := false
	for before, now := range c.Endpoints() {
		any = true
		if now == nil {
			now = before
		}
		v.pending.Families |= now.Family().Set()
	}
	if any {
		v.pending.Endpoints++
	}
	v.noLocal.note(c)
}

// flush hands over the difference from what was last handed over, in the order that package sink prescribes.
func (v *view) flush(r localstate.Receiver) localstate.Changes {
	var changes localstate.Changes
	if v.node != nil && !v.node.Equal(v.nodeGiven) {
		if r, ok := r.(localstate.NodeReceiver); ok {
			r.SetNode(v.node)
			changes.Node = true
		}
		v.nodeGiven = v.node
	}
	stay := make([]sink.Change, 0, max(0, v.effective.snapshot.NumServices()-v.handed.NumServices()))
	for c := range v.effective.snapshot.ChangesSince(v.handed) {
		if c.New != nil {
			stay = append(stay, c)
			continue
		}
		for _, e := range c.Old.Endpoints {
			r.DeleteEndpoint(e.Key())
			changes.Endpoints++
		}
		r.DeleteService(c.Name)
		changes.Services++
	}
	for _, c := range stay {
		for before, now := range c.Endpoints() {
			if c.Old == nil {
				break // no endpoint to delete
			}
			if now == nil {
				r.DeleteEndpoint(before.Key())
				changes.Endpoints++
			}
		}
		if c.ServiceChanged() {
			r.SetService(c.New.Service)
			changes.Services++
		}
		for _, now := range c.Endpoints() {
			if now != nil {
				r.SetEndpoint(now)
				changes.Endpoints++
			}
		}
	}
	if changes.Any() {
		changes.Families, changes.Triggers = v.pending.Families, v.triggers
	}
	v.handed, v.pending, v.triggers = v.effective.snapshot, localstate.Pending{}, model.PerFamily[[]time.Time]{}
	return changes
}
