package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// version is what the nodes of a class have in common, at one revision. It is immutable.
type version struct {
	class    *class
	revision uint64
	state    *sink.Snapshot
	buckets  *buckets
	root     digest
	cidrs    []netip.Prefix // ServiceCIDRs
	at       time.Time
	triggers [2][]time.Time // of the changes since the version before, by family
}

// ownParts is what one node has of its own in the services of its class. It is immutable.
type ownParts struct {
	revision uint64
	parts    map[model.ServiceName]*localstate.NodePart
}

// class is the nodes that have a state in common. It is guarded by the Server's lock, but for the batches.
type class struct {
	key      localstate.Class
	id       string // of key, the same on all replicas
	cluster  *localstate.State
	full     *sink.FullState
	snapshot *sink.Snapshot // of full
	cidrs    []netip.Prefix

	current *version
	recent  []*version // the older ones that a client may come back from, oldest first
	own     map[string]*ownParts
	empty   int                            // how often one of own was left without parts
	owners  map[model.ServiceName][]string // the nodes that have a part in a service, sorted

	sessions map[*session]struct{}
	idle     time.Time // since when there are none
	batches  *batches  // of current
}

func newClass(ctx context.Context, key localstate.Class, base *localstate.State) *class {
	id := sha256.Sum256(fmt.Appendf(nil, "%q", fmt.Sprint(key)))
	c := &class{
		key: key, id: hex.EncodeToString(id[:4]), cluster: base.ForClass(key), own: map[string]*ownParts{}, owners: map[model.ServiceName][]string{},
		sessions: map[*session]struct{}{}, snapshot: &sink.Snapshot{}, batches: newBatches(),
	}
	c.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		c.snapshot = s
		return nil
	})
	c.current = &version{class: c, state: c.snapshot, buckets: &buckets{}}
	return c
}

// publish works out what is pending. It returns whether what the nodes have in common changed, and the nodes of which
// what they have of their own did.
func (c *class) publish(ctx context.Context, revision uint64, now time.Time) (changed bool, touched []string) {
	names := c.cluster.PendingServices()
	if !c.cluster.Pending().Any() && c.current.revision > 0 {
		return false, nil
	}
	r := &classReceiver{FullState: c.full, class: c}
	changes := c.cluster.Flush(r)
	_ = c.full.Sync(ctx) // it takes the snapshot: it cannot fail
	touched = c.updateOwn(names, revision)

	next := &version{class: c, revision: revision, state: c.snapshot, cidrs: c.cidrs, at: now, buckets: &buckets{}}
	*next.buckets = *c.current.buckets
	for change := range next.state.ChangesSince(c.current.state) {
		next.buckets.change(change)
		changed = true
	}
	if !changed && c.current.revision > 0 && slices.Equal(next.cidrs, c.current.cidrs) {
		return false, touched
	}
	next.root = next.buckets.root()
	next.triggers = [2][]time.Time{changes.TriggersIPv4, changes.TriggersIPv6}
	if c.current.revision > 0 {
		c.recent = append(c.recent, c.current)
	}
	c.current, c.batches = next, newBatches()
	return true, touched
}

// updateOwn works out again what nodes have of their own in some services. It returns the nodes for which that changed.
func (c *class) updateOwn(names []model.ServiceName, revision uint64) []string {
	news := map[string]map[model.ServiceName]*localstate.NodePart{} // nil: gone
	for _, name := range names {
		parts := c.cluster.NodeParts(name)
		for _, node := range c.owners[name] {
			if parts[node] == nil {
				note(news, node, name, nil)
			}
		}
		for node, part := range parts {
			if before := c.own[node]; before == nil || !part.Equal(before.parts[name]) {
				note(news, node, name, part)
			}
		}
		if len(parts) == 0 {
			delete(c.owners, name)
		} else {
			c.owners[name] = slices.Sorted(maps.Keys(parts))
		}
	}
	for node, changes := range news {
		next := &ownParts{revision: revision, parts: map[model.ServiceName]*localstate.NodePart{}}
		if before := c.own[node]; before != nil {
			maps.Copy(next.parts, before.parts)
		}
		for name, part := range changes {
			if part == nil {
				delete(next.parts, name)
			} else {
				next.parts[name] = part
			}
		}
		c.own[node] = next // without parts, too: that is news, and has a revision
		if len(next.parts) == 0 {
			c.empty++
		}
	}
	return slices.Collect(maps.Keys(news))
}

func note(news map[string]map[model.ServiceName]*localstate.NodePart, node string, name model.ServiceName, part *localstate.NodePart) {
	if news[node] == nil {
		news[node] = map[model.ServiceName]*localstate.NodePart{}
	}
	news[node][name] = part
}

// forget lets go of versions that are too old to come back from. However many there are, what is kept of each is what
// changed; and a client that comes from before has its digests compared.
func (c *class) forget(before time.Time) {
	n := 0
	for n < len(c.recent) && c.recent[n].at.Before(before) {
		n++
	}
	if n > 0 {
		c.recent = slices.Clone(c.recent[n:])
	}
}

// maxEmpty is how many nodes are remembered that have nothing of their own any more.
const maxEmpty = 1000

// forgetNodes lets go of nodes that have nothing of their own any more, nor a client.
func (c *class) forgetNodes() {
	if c.empty <= maxEmpty {
		return
	}
	connected := map[string]bool{}
	for s := range c.sessions {
		connected[s.node] = true
	}
	maps.DeleteFunc(c.own, func(node string, own *ownParts) bool { return len(own.parts) == 0 && !connected[node] })
	c.empty = 0
}

// find returns the version that a client says it has: by its digest or, for a client without one, by its revision, which
// has to be of this server.
func (c *class) find(has func(*version) bool) *version {
	if has(c.current) {
		return c.current
	}
	for _, v := range slices.Backward(c.recent) {
		if has(v) {
			return v
		}
	}
	return nil
}

// triggersSince are those of all changes after a version, if it is a recent one of the class.
func (c *class) triggersSince(from, to *version) [2][]time.Time {
	at := slices.Index(c.recent, from)
	if at < 0 || to != c.current {
		return [2][]time.Time{}
	}
	all := [2][]time.Time{slices.Clone(to.triggers[0]), slices.Clone(to.triggers[1])}
	for _, v := range c.recent[at+1:] {
		for f := range all {
			all[f] = append(all[f], v.triggers[f]...)
		}
	}
	for f := range all {
		all[f] = all[f][:min(len(all[f]), maxTriggers)]
	}
	return all
}

// maxTriggers bounds the times in a batch: of more, the first are as good a sample.
const maxTriggers = 100

// classReceiver takes the ServiceCIDRs out of the class's node, which is none.
type classReceiver struct {
	*sink.FullState
	class *class
}

func (r *classReceiver) SetNode(n *model.Node) { r.class.cidrs = n.ServiceCIDRs }
