package brain

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// batches are the encoded differences that lead to the current version of a class. Each is encoded once, by the first
// session that needs it; other sessions that need the same one wait for that.
type batches struct {
	buckets *wire.Buckets // of the version
	zips    *wire.Compressors

	mu       sync.Mutex
	by       map[*version]*batch
	whole    map[*version]*batch          // by where clients from another server begin, see changedSince
	compared map[[sha256.Size]byte]*batch // by what they replace
}

// maxCompared is how many results of comparisons are kept of a version. Clients that come from one server have the same.
const maxCompared = 64

// batch is the difference between two versions: for each message to send, the encoded fields of an Update.
type batch struct {
	once   sync.Once
	chunks []*wire.Frame
	lost   bool // the older version is not kept any more
	// whole is the complete message for a client that has the older version and whose own state is the same in both;
	// nil if one message is not enough.
	whole *wire.Frame
}

func newBatches(b *wire.Buckets, zips *wire.Compressors) *batches {
	return &batches{buckets: b, zips: zips, by: map[*version]*batch{},
		whole: map[*version]*batch{}, compared: map[[sha256.Size]byte]*batch{}}
}

// replacing returns what deletes some services and replaces others, for a client whose state has been compared. The
// lists are sorted here.
//
// Clients that find the same share it. They cannot share the comparison: a state's digest is a sum of those of its
// services, so a client that lies could claim another one's digest, and services that differ where they do not; all
// that have this digest would be sent the wrong ones.
func (b *batches) replacing(state *sink.Snapshot, gone, stale []model.ServiceName) *batch {
	hash := sha256.New()
	for _, names := range [][]model.ServiceName{gone, stale} {
		slices.SortFunc(names, model.ServiceName.Compare)
		_, _ = fmt.Fprintf(hash, "%q\n", names) // never fails
	}
	key := [sha256.Size]byte(hash.Sum(nil))
	b.mu.Lock()
	found := b.compared[key]
	if found == nil {
		found = &batch{}
		if len(b.compared) < maxCompared {
			b.compared[key] = found
		}
	}
	b.mu.Unlock()
	found.once.Do(func() { found.chunks = b.encodeWhole(state, gone, stale) })
	return found
}

// wholeSince returns what deletes some services and replaces others, for clients that begin at a version. They share
// it: what is called for the first of them, and returns false if the version is not known any more.
func (b *batches) wholeSince(since *version, what func() (state *sink.Snapshot, gone, stale []model.ServiceName,
	ok bool)) *batch {
	found := batchOf(b, b.whole, since)
	found.once.Do(func() {
		state, gone, stale, ok := what()
		if !ok {
			found.lost = true
			return
		}
		found.chunks = b.encodeWhole(state, gone, stale)
	})
	return found
}

func (b *batches) encodeWhole(state *sink.Snapshot, gone, stale []model.ServiceName) []*wire.Frame {
	w := wire.NewChunks(b.zips)
	for _, name := range gone {
		w.Deleted(name)
	}
	for _, name := range stale {
		w.Change(sink.Change{Name: name, New: state.Service(name)})
	}
	return w.Done()
}

// batchOf returns the batch that clients with a version share.
func batchOf(b *batches, of map[*version]*batch, v *version) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := of[v]
	if found == nil {
		found = &batch{}
		of[v] = found
	}
	return found
}

// sumOfChanges is what changed between two versions.
type sumOfChanges struct {
	deltas   []wire.Delta
	triggers model.PerFamily[[]time.Time] // when somebody changed pods in between
}

// from returns the encoded difference of the current version from an older one, or from nothing if that is nil. what
// works it out, or returns false if it is not known any more.
func (b *batches) from(old, current *version, what func() (sumOfChanges, bool)) *batch {
	found := batchOf(b, b.by, old)
	found.once.Do(func() {
		between, ok := what()
		if !ok {
			found.lost = true
			return
		}
		w := wire.NewChunks(b.zips)
		for _, d := range between.deltas {
			w.Delta(d)
		}
		w.Triggers(between.triggers)
		found.chunks = w.Done()
		if old != nil && len(found.chunks) == 1 {
			found.whole = wire.Join(wire.Encode(&remotev1.Update{Kind: remotev1.Kind_DIFF}), found.chunks[0],
				wire.Encode(&remotev1.Update{Sync: &remotev1.Sync{Revision: current.revision,
					Seen: current.progress.changed.Since(old.progress.changed)}})).Flat()
		}
	})
	return found
}
