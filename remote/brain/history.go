package brain

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A version is kept as what changed from the version before it, so that it takes as much memory as that. What changed
// between any two versions is the sum. A whole state is made only when somebody needs one, from that of another
// version, the base, and what changed between the two.

// base is a version with its whole state.
type base struct {
	mu      sync.Mutex
	version *version
	state   *sink.Snapshot
}

const (
	// maxSinceBase is the number of versions after which the base follows. Making a state costs a new list of the
	// endpoints for each service that has changed.
	maxSinceBase = 256
	// minHistory is about how many bytes of history are kept at least, of each class, for clients that are connected.
	minHistory = 16 << 20
)

// tooOld ends the stream of a client that has a version which is not kept any more. It comes again, and is compared.
func tooOld() error {
	return status.Error(codes.Aborted, "this client is too far behind: connect again, to any server")
}

// place returns the index of a version among those that are kept, len(c.recent) for the current one; false: it is not
// kept. The caller holds the Server's mu.
func (c *class) place(v *version) (int, bool) {
	if v == c.current {
		return len(c.recent), true
	}
	at, _ := slices.BinarySearchFunc(c.recent, v.revision, func(v *version, revision uint64) int {
		return cmp.Compare(v.revision, revision)
	})
	return at, at < len(c.recent) && c.recent[at] == v
}

// at returns the version at an index as place returns it. The caller holds the Server's mu.
func (c *class) at(i int) *version {
	if i < len(c.recent) {
		return c.recent[i]
	}
	return c.current
}

// between returns the versions after one up to a later one, or false if the class does not keep both of them any more,
// or their order is another. The caller holds the Server's mu.
func (c *class) between(from, to *version) ([]*version, bool) {
	if c.current == nil {
		return nil, false
	}
	first, okFirst := c.place(from)
	last, okLast := c.place(to)
	if !okFirst || !okLast || first > last {
		return nil, false
	}
	versions := make([]*version, 0, last-first)
	for i := first + 1; i <= last; i++ {
		versions = append(versions, c.at(i))
	}
	return versions, true
}

// deltasOf returns what changed to each of some versions. The caller holds the Server's mu.
func deltasOf(versions []*version) [][]wire.Delta {
	deltas := make([][]wire.Delta, 0, len(versions))
	for _, v := range versions {
		deltas = append(deltas, v.deltas)
	}
	return deltas
}

// triggersOf returns the trigger times of the changes to some versions.
func triggersOf(versions []*version) (all model.PerFamily[[]time.Time]) {
	for _, f := range model.Families() {
		times := all.At(f)
		for _, v := range versions {
			more := *v.triggers.At(f)
			*times = append(*times, more[:min(len(more), wire.MaxTriggers-len(*times))]...)
		}
	}
	return all
}

// deltasBetween returns what changed from a version to a later one of the same class, for each version, or false if
// that is not known any more.
func (s *Server) deltasBetween(from, to *version) (deltas [][]wire.Delta, triggers model.PerFamily[[]time.Time],
	ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions, ok := to.class.between(from, to)
	return deltasOf(versions), triggersOf(versions), ok
}

// stateOf returns the whole state of a version, or false if it cannot be made any more. It must not be called with mu
// held.
func (s *Server) stateOf(ctx context.Context, v *version) (*sink.Snapshot, bool) {
	b := &v.class.base
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version == v {
		return b.state, true
	}
	s.mu.Lock()
	versions, ahead := v.class.between(b.version, v)
	if !ahead { // another session has moved the base
		versions, _ = v.class.between(v, b.version)
	}
	deltas := deltasOf(versions)
	s.mu.Unlock()
	if len(deltas) == 0 {
		return nil, false
	}
	var state *sink.Snapshot
	full := sink.NewFullStateFrom(b.state, func(_ context.Context, made *sink.Snapshot) error {
		state = made
		return nil
	})
	if !ahead {
		slices.Reverse(deltas)
	}
	for _, wave := range deltas {
		for i := range wave {
			wave[i].Apply(full, !ahead)
		}
	}
	_ = full.Sync(ctx) // it takes the snapshot: it cannot fail
	if ahead {
		s.mu.Lock()
		v.class.setBase(v) // it is read with either lock held
		s.mu.Unlock()
		b.state = state
	}
	return state, true
}

// forget drops versions that ended before a time, when the next one began, and the oldest of those that together take
// too many bytes. A client that comes back with an older version has its digests compared. For clients that are
// connected, and behind, more is kept.
func (c *class) forget(before time.Time, mostBytes int) {
	if c.digestsUsed.Before(before) {
		c.digests = nil
	}
	ended := func(i int) bool { return c.at(i + 1).at.Before(before) }
	for c.resumable < len(c.recent) && (ended(c.resumable) || c.resumableBytes > mostBytes) {
		c.resumable++
		c.resumableBytes -= c.at(c.resumable).bytes
	}
	oldest, ok := c.place(c.base.version)
	n := 0
	for ok && n < min(c.resumable, oldest) && (ended(n) || c.kept > max(mostBytes, minHistory)) {
		n++
		c.kept -= c.at(n).bytes
	}
	if n > 0 {
		for i := range n + 1 { // to versions that are gone: a session may have these still
			c.at(i).deltas = nil
		}
		c.recent = slices.Clone(c.recent[n:])
		c.resumable -= n
	}
	c.baseLags = len(c.recent)+n-oldest >= maxSinceBase || c.sinceBase > max(mostBytes, minHistory)/4
}

// setBase makes a version the base. The caller holds the Server's mu, and sets the state.
func (c *class) setBase(v *version) {
	c.base.version, c.sinceBase = v, 0
	at, _ := c.place(v)
	for i := at + 1; i <= len(c.recent); i++ {
		c.sinceBase += c.at(i).bytes
	}
}

// add makes a version the current one.
func (c *class) add(v *version) {
	if c.current != nil {
		c.recent = append(c.recent, c.current)
		c.kept += v.bytes
		c.sinceBase += v.bytes
		c.resumableBytes += v.bytes
	}
	c.current = v
}

// find returns the newest version for which has returns true, of those that clients may resume from, or nil.
func (c *class) find(has func(*version) bool) *version {
	if has(c.current) {
		return c.current
	}
	for _, v := range slices.Backward(c.recent[c.resumable:]) {
		if has(v) {
			return v
		}
	}
	return nil
}

// classReceiver collects what a Flush of a class changes. It takes the ServiceCIDRs from the node that the class's
// State hands over, which is no real one.
type classReceiver struct {
	class   *class
	deltas  []wire.Delta
	service *model.Service // that the next call replaces
	old     *model.Endpoint
}

var (
	_ localstate.NodeReceiver     = (*classReceiver)(nil)
	_ localstate.ReplacedReceiver = (*classReceiver)(nil)
)

func (r *classReceiver) SetNode(n *model.Node) { r.class.cidrs = n.ServiceCIDRs }

func (r *classReceiver) ReplacedService(s *model.Service) { r.service = s }

func (r *classReceiver) ReplacedEndpoint(e *model.Endpoint) { r.old = e }

// of returns the delta of a service, whose calls follow each other.
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

// done returns what has changed, in the order of names.
func (r *classReceiver) done() []wire.Delta {
	wire.SortDeltas(r.deltas)
	return r.deltas
}
