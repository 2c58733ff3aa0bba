package remote

import (
	"context"
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// layer is a state with the digests of what is in it.
type layer struct {
	full     *sink.FullState
	snapshot *sink.Snapshot
	buckets  buckets // of what digested has
	digested *sink.Snapshot
}

// newLayer makes a layer that begins with a snapshot.
func newLayer(begin *sink.Snapshot) *layer {
	l := &layer{snapshot: begin, digested: &sink.Snapshot{}}
	l.full = sink.NewFullStateFrom(begin, func(_ context.Context, s *sink.Snapshot) error {
		l.snapshot = s
		return nil
	})
	return l
}

// sync takes what the layer was told, and returns the state before.
func (l *layer) sync(ctx context.Context) (before *sink.Snapshot) {
	before = l.snapshot
	_ = l.full.Sync(ctx) // it takes the snapshot: it cannot fail
	return before
}

// digests are those of the snapshot. They are worked out when they are asked for, by a heartbeat or for another stream:
// the sink does not wait for those of a first state.
func (l *layer) digests() *buckets {
	for c := range l.snapshot.ChangesSince(l.digested) {
		l.buckets.change(c)
	}
	l.digested = l.snapshot
	return &l.buckets
}

// view is what a client knows: the two layers that it is sent, and what they are together. The caller guards it.
type view struct {
	class    localstate.Class // of which only DrainingEndpoints counts
	families []model.Family
	node     *model.Node // nil before the first batch
	shared   *layer
	own      map[model.ServiceName]*localstate.NodePart

	effective *layer
	handed    *sink.Snapshot // what has been flushed of effective
	nodeGiven *model.Node
	pending   localstate.Pending
	triggers  [2][]time.Time
	noLocal   noLocal
}

func newView(opts localstate.Options) *view {
	return &view{
		class: localstate.Class{DrainingEndpoints: opts.DrainingEndpoints}, families: opts.EnabledFamilies(),
		shared: newLayer(&sink.Snapshot{}), own: map[model.ServiceName]*localstate.NodePart{},
		effective: newLayer(&sink.Snapshot{}), handed: &sink.Snapshot{}, noLocal: noLocal{},
	}
}

// take applies a complete batch.
func (v *view) take(ctx context.Context, kind remotev1.Kind, batch receivedBatch) error {
	if v.node == nil && batch.node == nil {
		return errors.New("node: is missing in the first batch")
	}
	before, touched, node := v.shared, map[model.ServiceName]bool{}, v.node
	if kind == remotev1.Kind_RESET {
		v.shared = newLayer(&sink.Snapshot{})
	}
	v.takeOwn(batch, touched)
	if batch.node != nil {
		v.node = batch.node
	}
	for _, changes := range batch.services {
		for i := range changes {
			v.takeChange(&changes[i])
		}
	}
	for i, times := range batch.triggers {
		v.triggers[i] = append(v.triggers[i], times...)
		v.triggers[i] = v.triggers[i][max(0, len(v.triggers[i])-maxTriggers):]
	}
	old := v.shared.sync(ctx)
	if kind == remotev1.Kind_RESET {
		old = before.snapshot
	}
	if node != nil && !slices.Equal(node.IPs, v.node.IPs) {
		for e := range v.shared.snapshot.Services() {
			if len(e.Service.LoadBalancerSourceRanges) > 0 {
				touched[e.Service.Name] = true
			}
		}
	}
	v.combine(ctx, old, touched)
	return nil
}

// takeOwn takes the parts of a batch, and notes the services of which they changed.
func (v *view) takeOwn(batch receivedBatch, touched map[model.ServiceName]bool) {
	own := v.own
	if batch.ownReset {
		own = map[model.ServiceName]*localstate.NodePart{}
	}
	for _, p := range batch.own {
		if !p.part.Equal(v.own[p.name]) {
			touched[p.name] = true
		}
		if p.part == nil {
			delete(own, p.name)
		} else {
			own[p.name] = p.part
		}
	}
	if batch.ownReset {
		for name := range v.own {
			if own[name] == nil {
				touched[name] = true
			}
		}
	}
	v.own = own
}

func (v *view) takeChange(c *receivedChange) {
	full := v.shared.full
	if (c.deleted || c.whole) && v.shared.snapshot.NumServices() > 0 { // there are none after a reset
		if known := v.shared.snapshot.Service(c.name); known != nil {
			for _, e := range known.Endpoints {
				full.DeleteEndpoint(e.Key())
			}
		}
	}
	if c.deleted {
		full.DeleteService(c.name)
		return
	}
	if c.service != nil {
		full.SetService(c.service)
	}
	for _, key := range c.removed {
		full.DeleteEndpoint(key)
	}
	for _, e := range c.endpoints {
		full.SetEndpoint(e)
	}
}

// digest is that of what the server has sent.
func (v *view) digest() *remotev1.Digest {
	if v.node == nil {
		return nil
	}
	return digestMessage(v.shared.digests().root(), ownDigest(v.node, v.own))
}
