package remote

import (
	"context"
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// layer is a state with its digests.
type layer struct {
	full     *sink.FullState
	snapshot *sink.Snapshot
	buckets  wire.Buckets // of digested
	digested *sink.Snapshot
}

// newLayer returns a layer that starts with a snapshot.
func newLayer(begin *sink.Snapshot) *layer {
	l := &layer{snapshot: begin, digested: &sink.Snapshot{}}
	l.full = sink.NewFullStateFrom(begin, func(_ context.Context, s *sink.Snapshot) error {
		l.snapshot = s
		return nil
	})
	return l
}

// sync applies the changes to the layer, and returns the previous state.
func (l *layer) sync(ctx context.Context) (before *sink.Snapshot) {
	before = l.snapshot
	_ = l.full.Sync(ctx) // it takes the snapshot: it cannot fail
	return before
}

// digests returns the digests of the snapshot. They are computed on demand, for a heartbeat or a new stream, so that
// the sink does not wait for those of the first state.
func (l *layer) digests() *wire.Buckets {
	for c := range l.snapshot.ChangesSince(l.digested) {
		l.buckets.Change(c)
	}
	l.digested = l.snapshot
	return &l.buckets
}

// view is the state of a client: the two layers that it is sent, and their combination. The caller guards it.
type view struct {
	class    localstate.Class // only DrainingEndpoints and AllEndpoints are used
	families []model.Family
	node     *model.Node // nil before the first batch
	shared   *layer
	own      map[model.ServiceName]*localstate.NodePart
	// incomparable: the server has sent something unknown, so the client's digests differ from the server's.
	incomparable bool

	effective *layer
	handed    *sink.Snapshot // what has been flushed of effective
	nodeGiven *model.Node
	pending   localstate.Pending
	triggers  model.PerFamily[[]time.Time]
	noLocal   noLocal
}

func newView(opts localstate.Options) *view {
	return &view{
		class:    localstate.Class{DrainingEndpoints: opts.DrainingEndpoints, AllEndpoints: opts.AllEndpoints},
		families: opts.EnabledFamilies(),
		shared:   newLayer(&sink.Snapshot{}), own: map[model.ServiceName]*localstate.NodePart{},
		effective: newLayer(&sink.Snapshot{}), handed: &sink.Snapshot{},
	}
}

// withOptions returns a view of the same state with different options, of those that the server does not know, such as
// families.
func (v *view) withOptions(ctx context.Context, opts localstate.Options) *view {
	next := newView(opts)
	if v.node == nil {
		return next
	}
	next.node, next.shared, next.own, next.incomparable = v.node, v.shared, v.own, v.incomparable
	next.triggers = v.triggers
	next.combine(ctx, next.shared.snapshot, map[model.ServiceName]bool{})
	return next
}

// take applies a complete batch.
func (v *view) take(ctx context.Context, kind remotev1.Kind, batch wire.Batch) error {
	if v.node == nil && batch.Node == nil {
		return errors.New("the first batch has no node")
	}
	before, touched, node := v.shared, map[model.ServiceName]bool{}, v.node
	if kind == remotev1.Kind_RESET {
		v.shared, v.incomparable = newLayer(&sink.Snapshot{}), false
	}
	v.incomparable = v.incomparable || batch.Skipped
	v.takeOwn(batch, touched)
	if batch.Node != nil {
		v.node = batch.Node
	}
	for _, changes := range batch.Services {
		for i := range changes {
			changes[i].Apply(v.shared.full, v.shared.snapshot)
		}
	}
	for _, f := range model.Families() {
		times := v.triggers.At(f)
		*times = append(*times, *batch.Triggers.At(f)...)
		*times = (*times)[max(0, len(*times)-wire.MaxTriggers):]
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

// takeOwn applies the parts of a batch, and adds the services whose parts changed to touched.
func (v *view) takeOwn(batch wire.Batch, touched map[model.ServiceName]bool) {
	own := v.own
	if batch.OwnReset {
		own = map[model.ServiceName]*localstate.NodePart{}
	}
	for _, p := range batch.Own {
		if !p.Part.Equal(v.own[p.Name]) {
			touched[p.Name] = true
		}
		if p.Part == nil {
			delete(own, p.Name)
		} else {
			own[p.Name] = p.Part
		}
	}
	if batch.OwnReset {
		for name := range v.own {
			if own[name] == nil {
				touched[name] = true
			}
		}
	}
	v.own = own
}

// digest returns the digest of what the server has sent; nil: there is none.
func (v *view) digest() *remotev1.Digest {
	if v.node == nil || v.incomparable {
		return nil
	}
	return wire.DigestMessage(v.shared.digests().Root(), wire.OwnDigest(v.node, v.own))
}
