package brain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// version is the state that the nodes of a class share, at one revision. It is immutable, but for deltas. See
// history.go.
type version struct {
	class    *class
	revision uint64
	root     wire.Digest
	cidrs    []netip.Prefix // ServiceCIDRs
	at       time.Time
	triggers model.PerFamily[[]time.Time] // of the changes since the version before, by family
	progress *progress                    // when it was published
	deltas   []wire.Delta                 // from the version before; guarded by the Server's mu
	bytes    int                          // about what deltas and triggers take
}

// ownParts is what one node has of its own in the services of its class. It is immutable.
type ownParts struct {
	revision uint64
	parts    map[model.ServiceName]*localstate.NodePart
	sum      wire.Digest // of parts
}

// change returns a copy with some parts replaced, or deleted where the new part is nil. o may be nil.
func (o *ownParts) change(changes map[model.ServiceName]*localstate.NodePart, revision uint64) *ownParts {
	next := &ownParts{revision: revision, parts: map[model.ServiceName]*localstate.NodePart{}}
	if o != nil {
		maps.Copy(next.parts, o.parts)
		next.sum = o.sum
	}
	for name, part := range changes {
		if before := next.parts[name]; before != nil {
			next.sum = next.sum.Sub(wire.PartDigest(name, before))
			delete(next.parts, name)
		}
		if part != nil {
			next.sum = next.sum.Add(wire.PartDigest(name, part))
			next.parts[name] = part
		}
	}
	return next
}

// class is a group of nodes that share a state. It keeps the own parts only of nodes in its zone, because there may be
// as many parts as endpoints in the cluster.
type class struct {
	key    localstate.Class
	id     string                   // of key, the same on all replicas
	zoneOf func(node string) string // by the Node objects
	zips   *wire.Compressors

	// Guarded by the Server's work.
	cluster *localstate.State
	backlog []watch.Change // changes that came while the first state was being worked out
	cidrs   []netip.Prefix
	owners  map[model.ServiceName][]string // the nodes that have a part in a service, sorted

	// Written with the Server's work and mu held.
	current  *version // nil while the first state is worked out
	progress *progress
	own      map[string]*ownParts
	empty    int                 // the number of times that one of own was left without parts
	foreign  map[string]struct{} // nodes of other zones, whose parts are not kept: see Server.adopt

	foreignLimit int // the size of foreign at which nodes that are gone are dropped from it

	// Guarded by the Server's mu, except what is in batches.
	recent         []*version // older versions that a client may still have, oldest first
	kept           int        // about how many bytes these take
	resumable      int        // the index of the oldest of recent that clients may resume from
	resumableBytes int        // about how many bytes it takes to keep these
	sinceBase      int        // of these, and the current one, what follows the base
	baseLags       bool       // so many versions follow the base that it should follow them
	sessions       map[*session]struct{}
	idle           time.Time // since when there are no sessions
	last           party     // of the session that was the last to leave, or that had the class made
	batches        *batches  // to current
	// digests are those of services, for clients that resume, and digestsUsed is when they were last of use.
	digests     *wire.KnownDigests
	digestsUsed time.Time

	base base
}

func newClass(key localstate.Class, zoneOf func(node string) string, zips *wire.Compressors) *class {
	id := sha256.Sum256(fmt.Appendf(nil, "%q", fmt.Sprint(key)))
	return &class{
		key: key, id: hex.EncodeToString(id[:4]), zoneOf: zoneOf, zips: zips, own: map[string]*ownParts{},
		owners: map[model.ServiceName][]string{}, foreign: map[string]struct{}{},
		sessions: map[*session]struct{}{}, idle: time.Now(),
	}
}

// apply takes a change that the Server has already applied to base, where its error, if any, has been logged.
func (c *class) apply(change watch.Change) {
	if c.current == nil {
		c.backlog = append(c.backlog, change)
		return
	}
	_, _ = c.cluster.Apply(change.Object, change.Deleted)
}

// catchUp applies the changes that came while the first state was being worked out.
func (c *class) catchUp() {
	for _, change := range c.backlog {
		_, _ = c.cluster.Apply(change.Object, change.Deleted)
	}
	c.backlog = nil
}

// classUpdate is what changes for a class with a revision.
type classUpdate struct {
	version *version             // nil: the shared state is the same
	buckets *wire.Buckets        // of version
	own     map[string]*ownParts // of the nodes whose own parts changed
	foreign []string             // nodes that turned out to be foreign
}

func (u classUpdate) any() bool { return u.version != nil || len(u.own) > 0 || len(u.foreign) > 0 }

// workOut works out what is pending. The caller then calls install.
func (c *class) workOut(ctx context.Context, revision uint64, now time.Time) (update classUpdate) {
	if c.current != nil && !c.cluster.Pending().Any() {
		return classUpdate{}
	}
	names := c.cluster.PendingServices()
	r := &classReceiver{class: c}
	changes := c.cluster.Flush(r)
	update.own, update.foreign = c.updateOwn(names, revision)

	digests := &wire.Buckets{}
	if c.current != nil {
		*digests = *c.batches.buckets
	}
	next := &version{class: c, revision: revision, cidrs: c.cidrs, at: now, deltas: r.done()}
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
	next.bytes += triggerBytes(next.triggers)
	update.version, update.buckets = next, digests
	return update
}

// triggerBytes is what trigger times take.
func triggerBytes(t model.PerFamily[[]time.Time]) int {
	return (len(t.IPv4) + len(t.IPv6)) * int(unsafe.Sizeof(time.Time{}))
}

// begin makes the state of the first version.
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

// install makes the result of workOut the current state. all are the Server's sessions, by node.
func (c *class) install(update classUpdate, all map[string]map[*session]struct{}) {
	for node, own := range update.own {
		c.own[node] = own
		if len(own.parts) == 0 {
			c.empty++
		}
		c.tell(all[node], own, false)
	}
	for _, node := range update.foreign {
		c.foreign[node] = struct{}{}
		c.tell(all[node], nil, true)
	}
	c.forgetNodes()
	if update.version == nil {
		return
	}
	c.add(update.version)
	c.batches = newBatches(update.buckets, c.zips)
}

// tell tells those of a node's sessions that are in the class what the node has of its own.
func (c *class) tell(sessions map[*session]struct{}, own *ownParts, foreign bool) {
	for s := range sessions {
		if s.class == c {
			s.own, s.foreign = own, foreign
		}
	}
}

// concerned returns the sessions of the class that an update concerns: all of them if the shared state changed, else
// those of nodes whose own parts changed or have yet to be worked out. all are the Server's sessions, by node.
func (c *class) concerned(all map[string]map[*session]struct{}, update classUpdate) iter.Seq[*session] {
	if update.version != nil {
		return maps.Keys(c.sessions)
	}
	return func(yield func(*session) bool) {
		for _, node := range slices.AppendSeq(update.foreign, maps.Keys(update.own)) {
			for s := range all[node] {
				if s.class == c && !yield(s) {
					return
				}
			}
		}
	}
}

// updateOwn works out again the nodes' own parts of some services. It returns those of the nodes for which they
// changed, and nodes that are foreign.
func (c *class) updateOwn(names []model.ServiceName, revision uint64) (own map[string]*ownParts, foreign []string) {
	kept := map[string]bool{} // a node's zone may change meanwhile
	keep := func(node string) bool {
		keeps, known := kept[node]
		if !known {
			_, isForeign := c.foreign[node]
			keeps = c.own[node] != nil || !isForeign && c.zoneOf(node) == c.key.Zone
			kept[node] = keeps
			if !keeps && !isForeign {
				foreign = append(foreign, node)
			}
		}
		return keeps
	}
	return c.ownOf(names, keep, c.cluster.ChangedParts, revision), foreign
}

// ownOf works out the own parts of some services, for the nodes that keep returns true for. partsOf is ChangedParts of
// the class's State, or returns all parts.
func (c *class) ownOf(names []model.ServiceName, keep func(node string) bool, partsOf partsFunc,
	revision uint64) map[string]*ownParts {
	news := map[string]map[model.ServiceName]*localstate.NodePart{} // nil: gone
	for _, name := range names {
		parts, all := partsOf(name, keep)
		for node := range c.lost(name, parts, all) {
			note(news, node, name, nil)
		}
		for node, part := range parts {
			if before := c.own[node]; part != nil && (before == nil || !part.Equal(before.parts[name])) {
				note(news, node, name, part)
			}
		}
		c.noteOwners(name, parts, all)
	}
	own := make(map[string]*ownParts, len(news))
	for node, changes := range news {
		own[node] = c.own[node].change(changes, revision) // without parts, too: that is news, and has a revision
	}
	return own
}

type partsFunc func(name model.ServiceName, keep func(node string) bool) (parts map[string]*localstate.NodePart,
	all bool)

// allParts is a partsFunc.
func (c *class) allParts(name model.ServiceName, keep func(node string) bool) (parts map[string]*localstate.NodePart,
	all bool) {
	return c.cluster.NodeParts(name, keep), true
}

// lost yields the nodes that had a part in a service and have none according to some parts, or to all.
func (c *class) lost(name model.ServiceName, parts map[string]*localstate.NodePart, all bool) iter.Seq[string] {
	owners := c.owners[name]
	return func(yield func(string) bool) {
		if all {
			for _, node := range owners {
				if parts[node] == nil && !yield(node) {
					return
				}
			}
			return
		}
		for node, part := range parts {
			if _, had := slices.BinarySearch(owners, node); had && part == nil && !yield(node) {
				return
			}
		}
	}
}

// noteOwners notes which nodes have a part in a service.
func (c *class) noteOwners(name model.ServiceName, parts map[string]*localstate.NodePart, all bool) {
	owners := c.owners[name]
	if all {
		owners = slices.Sorted(maps.Keys(parts))
	} else {
		for node, part := range parts {
			switch at, is := slices.BinarySearch(owners, node); {
			case is && part == nil:
				owners = slices.Delete(owners, at, at+1)
			case !is && part != nil:
				owners = slices.Insert(owners, at, node)
			}
		}
	}
	if len(owners) == 0 {
		delete(c.owners, name)
	} else {
		c.owners[name] = owners
	}
}

func note(news map[string]map[model.ServiceName]*localstate.NodePart, node string, name model.ServiceName,
	part *localstate.NodePart) {
	if news[node] == nil {
		news[node] = map[model.ServiceName]*localstate.NodePart{}
	}
	news[node][name] = part
}
