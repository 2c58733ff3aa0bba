package brain

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// version is the state that the nodes of a class share at one revision. It is immutable, except for deltas, which the
// history fills in and drops.
type version struct {
	history  *history // of its class
	revision uint64
	root     wire.Digest
	cidrs    []netip.Prefix // ServiceCIDRs
	at       time.Time
	triggers model.PerFamily[[]time.Time] // of the changes since the version before, by family
	progress *progress                    // when it was published
	deltas   []wire.Delta                 // from the version before; guarded by the Server's mu
	bytes    int                          // its approximate size in memory
}

// versionBytes is the approximate size of a version without its deltas and triggers, with the references to it in the
// class.
const versionBytes = int(unsafe.Sizeof(version{})+unsafe.Sizeof(progress{})) + 64

// triggerBytes is the size of trigger times.
func triggerBytes(t model.PerFamily[[]time.Time]) int {
	return (len(t.IPv4) + len(t.IPv6)) * int(unsafe.Sizeof(time.Time{}))
}

// nodeVIPBytes is the approximate size of one of the NodeVIPs: a slice, and at most 16 bytes.
const nodeVIPBytes = 40

// A version is kept as the changes from the version before, so its memory is that of the changes. The difference of two
// versions is the sum of the changes between them. A whole state is made only on demand, from the state of the base
// version and the changes between the two.

// base is a version with its whole state.
type base struct {
	mu      sync.Mutex
	version *version
	state   *sink.Snapshot
}

// history has the current version of a class, and the older ones that are kept. The Server's mu guards it. It is
// written with the Server's work held as well.
type history struct {
	id       string      // of the class, the same on all replicas
	instance string      // of the server and the class, as sent to clients
	mu       *sync.Mutex // the Server's

	current        *version                 // nil while the first state is computed
	recent         []*version               // older versions that a client may still have, oldest first
	kept           int                      // the approximate size of these, in bytes
	resumable      int                      // the index of the oldest of recent that clients may resume from
	resumableBytes int                      // the approximate size of these, in bytes
	byRoot         map[wire.Digest]*version // the newest of recent and current, by its digest
	sinceBase      int                      // the size of the versions after the base, the current one included
	baseLags       bool                     // the base is too far behind the current version
	base           base

	// digests are those of services, for clients that resume, and digestsUsed is when they were last used.
	digests     *wire.KnownDigests
	digestsUsed time.Time
}

const (
	// maxSinceBase is the number of versions after which the base moves to the current one. Making a state costs a new
	// list of endpoints for each service that changed.
	maxSinceBase = 256
	// minHistory is the smallest limit, in bytes, for the history that each class keeps for connected clients.
	minHistory = 16 << 20
)

// tooOld ends the stream of a client whose version is no longer kept. When it connects again, its state is compared.
func tooOld() error {
	return status.Error(codes.Aborted, "this client is too far behind: connect again, to any server")
}

// indexOf returns the index of a version among those that are kept, len(h.recent) for the current one, or false if it
// is not kept. The caller holds the Server's mu.
func (h *history) indexOf(v *version) (int, bool) {
	if v == h.current {
		return len(h.recent), true
	}
	at, _ := slices.BinarySearchFunc(h.recent, v.revision, func(v *version, revision uint64) int {
		return cmp.Compare(v.revision, revision)
	})
	return at, at < len(h.recent) && h.recent[at] == v
}

// at returns the version at an index that indexOf returns. The caller holds the Server's mu.
func (h *history) at(i int) *version {
	if i < len(h.recent) {
		return h.recent[i]
	}
	return h.current
}

// between returns the versions after from, up to to. It returns false if the history no longer has both of them, or if
// to is older. The caller holds the Server's mu.
func (h *history) between(from, to *version) ([]*version, bool) {
	if h.current == nil {
		return nil, false
	}
	first, okFirst := h.indexOf(from)
	last, okLast := h.indexOf(to)
	if !okFirst || !okLast || first > last {
		return nil, false
	}
	versions := make([]*version, 0, last-first)
	for i := first + 1; i <= last; i++ {
		versions = append(versions, h.at(i))
	}
	return versions, true
}

// deltasOf returns the changes to each of some versions. The caller holds the Server's mu.
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

// since returns the changes from an older version of the same class, for each version after it, or false if they are no
// longer kept.
func (v *version) since(from *version) (deltas [][]wire.Delta, triggers model.PerFamily[[]time.Time], ok bool) {
	v.history.mu.Lock()
	defer v.history.mu.Unlock()
	versions, ok := v.history.between(from, v)
	return deltasOf(versions), triggersOf(versions), ok
}

// changesBetween returns the changes from a version, or from nothing if from is nil, to another one, which may be of
// another class. It returns false if a state can no longer be made.
func changesBetween(ctx context.Context, from, to *version) (deltas []wire.Delta,
	triggers model.PerFamily[[]time.Time], ok bool) {
	before := &sink.Snapshot{}
	if from != nil {
		if from.history == to.history {
			if waves, triggers, ok := to.since(from); ok {
				return wire.Merge(waves), triggers, true
			} // else one is no longer kept, or from is newer: published while its client was introduced
		}
		if before, ok = from.state(ctx); !ok {
			return nil, triggers, false
		}
	}
	now, ok := to.state(ctx)
	if !ok {
		return nil, triggers, false
	}
	for c := range now.ChangesSince(before) {
		deltas = append(deltas, wire.DeltaOf(c))
	}
	return deltas, triggers, true
}

// state returns the whole state of a version, or false if it can no longer be made. The caller does not hold the
// Server's mu.
func (v *version) state(ctx context.Context) (*sink.Snapshot, bool) {
	h := v.history
	b, mu := &h.base, h.mu
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version == v {
		return b.state, true
	}
	mu.Lock()
	versions, ahead := h.between(b.version, v)
	if !ahead { // another client has moved the base
		versions, _ = h.between(v, b.version)
	}
	deltas := deltasOf(versions)
	mu.Unlock()
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
		mu.Lock()
		h.setBase(v) // it is read with either lock held
		mu.Unlock()
		b.state = state
	}
	return state, true
}

// forget drops versions that were replaced before a time, and the oldest ones if all together take too many bytes. A
// client that returns with an older version has its digests compared. More is kept for clients that are connected and
// behind.
func (h *history) forget(before time.Time, mostBytes int) {
	if h.digestsUsed.Before(before) {
		h.digests = nil
	}
	ended := func(i int) bool { return h.at(i + 1).at.Before(before) }
	for h.resumable < len(h.recent) && (ended(h.resumable) || h.resumableBytes > mostBytes) {
		h.resumable++
		h.resumableBytes -= h.at(h.resumable).bytes
	}
	oldest, ok := h.indexOf(h.base.version)
	n := 0
	for ok && n < min(h.resumable, oldest) && (ended(n) || h.kept > max(mostBytes, minHistory)) {
		n++
		h.kept -= h.at(n).bytes
	}
	if n > 0 {
		for i := range n + 1 { // the changes lead to versions that are gone; a client may still refer to these
			h.at(i).deltas = nil
		}
		for _, v := range h.recent[:n] {
			if h.byRoot[v.root] == v {
				delete(h.byRoot, v.root)
			}
		}
		clear(h.recent[:n])
		h.recent = h.recent[n:]
		h.resumable -= n
	}
	h.baseLags = len(h.recent)+n-oldest >= maxSinceBase || h.sinceBase > max(mostBytes, minHistory)/4
}

// setBase makes a version the base. The caller holds the Server's mu, and sets the state.
func (h *history) setBase(v *version) {
	h.base.version, h.sinceBase = v, 0
	at, _ := h.indexOf(v)
	for i := at + 1; i <= len(h.recent); i++ {
		h.sinceBase += h.at(i).bytes
	}
}

// knownDigests returns the digests of services in the class. They are kept while clients ask for them.
func (h *history) knownDigests() *wire.KnownDigests {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.digests == nil {
		h.digests = &wire.KnownDigests{}
	}
	h.digestsUsed = time.Now()
	return h.digests
}

// add makes a version the current one.
func (h *history) add(v *version) {
	if h.current != nil {
		if before := h.current.progress.nodeVIPs; before != v.progress.nodeVIPs { // it stays because of the older version
			v.bytes += nodeVIPBytes * len(before.GetIps())
		}
		h.recent = append(h.recent, h.current)
		h.kept += v.bytes
		h.sinceBase += v.bytes
		h.resumableBytes += v.bytes
	}
	h.current = v
	h.byRoot[v.root] = v
}

// withRoot returns the newest version with a digest from which clients may resume, or nil.
func (h *history) withRoot(root wire.Digest) *version {
	v := h.byRoot[root]
	if v == nil {
		return nil
	}
	if at, ok := h.indexOf(v); !ok || at < h.resumable {
		return nil
	}
	return v
}

// before returns the newest version from which clients may resume and for which after returns false, or nil. If after
// returns true for a version, it does so for all later ones.
func (h *history) before(after func(*version) bool) *version {
	from, n := h.resumable, len(h.recent)+1-h.resumable
	first := sort.Search(n, func(i int) bool { return after(h.at(from + i)) })
	if first == 0 {
		return nil
	}
	return h.at(from + first - 1)
}
