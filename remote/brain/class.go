package brain

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// class is a group of nodes that share a state. See group for the clients of these nodes.
type class struct {
	history
	nodeParts
	key         localstate.Class
	compressors *wire.Compressors

	// Guarded by the Server's work.
	backlog []watch.Change // changes that arrived while the first state was being computed
	cidrs   []netip.Prefix

	// Written with the Server's work and mu held.
	progress *progress
	batches  *batches // to the current version
}

// apply applies a change. The Server has applied it to its own state before, and logged the error, if any.
func (c *class) apply(change watch.Change) {
	if c.current == nil {
		c.backlog = append(c.backlog, change)
		return
	}
	_, _ = c.cluster.Apply(change.Object, change.Deleted)
}

// catchUp applies the changes that arrived while the first state was being computed.
func (c *class) catchUp() {
	for _, change := range c.backlog {
		_, _ = c.cluster.Apply(change.Object, change.Deleted)
	}
	c.backlog = nil
}

// classUpdate is what a revision changes in a class.
type classUpdate struct {
	version *version             // nil: the shared state is the same
	buckets *wire.Buckets        // of version
	own     map[string]*ownParts // of the nodes whose own parts changed
	foreign []string             // nodes that turned out to be foreign
}

func (u classUpdate) any() bool { return u.version != nil || len(u.own) > 0 || len(u.foreign) > 0 }

// workOut computes the pending changes. The caller then calls install.
func (c *class) workOut(ctx context.Context, revision uint64, now time.Time) (update classUpdate) {
	if c.current != nil && !c.cluster.Pending().Any() {
		return classUpdate{}
	}
	names := c.cluster.PendingServices()
	r := &classReceiver{cidrs: c.cidrs}
	changes := c.cluster.Flush(r)
	c.cidrs = r.cidrs
	update.own, update.foreign = c.updateOwn(names, revision)

	digests := &wire.Buckets{}
	if c.current != nil {
		*digests = *c.batches.buckets
	}
	next := &version{history: &c.history, revision: revision, cidrs: c.cidrs, at: now, deltas: r.done()}
	for i := range next.deltas {
		digests.Delta(next.deltas[i])
		next.bytes += next.deltas[i].Size()
	}
	if c.current == nil {
		c.begin(ctx, next)
	} else if len(next.deltas) == 0 && slices.Equal(next.cidrs, c.current.cidrs) {
		return update
	}
	next.root = digests.Root()
	next.triggers = changes.Triggers
	next.bytes += versionBytes + triggerBytes(next.triggers)
	update.version, update.buckets = next, digests
	return update
}

// begin creates the state of the first version.
func (c *class) begin(ctx context.Context, first *version) {
	full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		c.base.version, c.base.state = first, s
		return nil
	})
	for i := range first.deltas {
		first.deltas[i].Apply(full, false)
	}
	_ = full.Sync(ctx) // it takes the snapshot: it cannot fail
	first.deltas, first.bytes = nil, 0
}

// install makes the result of workOut the current state. The caller holds both of the Server's locks.
func (c *class) install(update classUpdate) {
	for node, own := range update.own {
		c.own[node] = own
		if own.parts.IsEmpty() {
			c.empty++
		}
	}
	for _, node := range update.foreign {
		c.foreign[node] = struct{}{}
	}
	if update.version != nil {
		c.add(update.version)
		c.batches = newBatches(update.buckets, c.compressors)
	}
}

// classReceiver collects the changes of a class's Flush. It takes the ServiceCIDRs from the Node that the class's State
// hands over, which represents all nodes of the class.
type classReceiver struct {
	cidrs   []netip.Prefix
	deltas  []wire.Delta
	service *model.Service // the one that the next call replaces
	old     *model.Endpoint
}

var (
	_ localstate.NodeReceiver     = (*classReceiver)(nil)
	_ localstate.ReplacedReceiver = (*classReceiver)(nil)
)

func (r *classReceiver) SetNode(n *model.Node) { r.cidrs = n.ServiceCIDRs }

func (r *classReceiver) ReplacedService(s *model.Service) { r.service = s }

func (r *classReceiver) ReplacedEndpoint(e *model.Endpoint) { r.old = e }

// of returns the delta of a service. Calls about one service follow each other.
func (r *classReceiver) of(name model.ServiceName) *wire.Delta {
	n := len(r.deltas)
	if n == 0 || r.deltas[n-1].Name != name {
		r.deltas = append(r.deltas, wire.Delta{Name: name})
		n++
	}
	return &r.deltas[n-1]
}

func (r *classReceiver) SetService(s *model.Service) { r.serviceChanges(s.Name, s) }

func (r *classReceiver) DeleteService(name model.ServiceName) { r.serviceChanges(name, nil) }

func (r *classReceiver) serviceChanges(name model.ServiceName, s *model.Service) {
	d := r.of(name)
	d.ServiceChanged, d.Old, d.New = true, r.service, s
	r.service = nil
}

func (r *classReceiver) SetEndpoint(e *model.Endpoint) { r.endpointChanges(e.Port.Service, e) }

func (r *classReceiver) DeleteEndpoint(key model.EndpointKey) {
	r.endpointChanges(key.Port.Service, nil)
}

func (r *classReceiver) endpointChanges(name model.ServiceName, e *model.Endpoint) {
	d := r.of(name)
	d.Endpoints = append(d.Endpoints, wire.EndpointDelta{Old: r.old, New: e})
	r.old = nil
}

// done returns the changes, sorted by name.
func (r *classReceiver) done() []wire.Delta {
	wire.SortDeltas(r.deltas)
	return r.deltas
}
