package brain

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// batches are the encoded differences that lead to the current version of a class. The first client that needs one
// encodes it; others that need the same one wait for that.
type batches struct {
	buckets     *wire.Buckets // of the version
	compressors *wire.Compressors

	mu       sync.Mutex
	uses     uint64 // so far
	by       map[*version]*batch
	whole    map[*version]*batch          // for clients of other servers: see changedSince
	compared map[[sha256.Size]byte]*batch // by what they replace
}

// maxCompared is how many results of comparisons are kept for a version. Clients that come from the same server share
// one.
const maxCompared = 64

// batch is the difference between two versions: the encoded fields of an Update, for each message to send.
type batch struct {
	once   sync.Once
	used   uint64 // the last of batches.uses; guarded by the mutex of batches
	chunks []*wire.Frame
	lost   bool // the older version is no longer kept
	// whole is the complete message for a client whose own parts are the same in both versions; nil if the difference
	// takes more than one message.
	whole *wire.Frame
}

func newBatches(b *wire.Buckets, compressors *wire.Compressors) *batches {
	return &batches{buckets: b, compressors: compressors, by: map[*version]*batch{},
		whole: map[*version]*batch{}, compared: map[[sha256.Size]byte]*batch{}}
}

// replacing returns the batch that deletes some services and replaces others, for a client whose state was compared. It
// sorts the lists.
//
// Clients with the same result share the batch. They cannot share the comparison itself: a digest is a sum of the
// digests of services, so a client that lies could claim the digest of another client and different services, and every
// client with that digest would be sent the wrong ones.
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

// wholeSince returns the batch that deletes some services and replaces others, for clients that start at a version.
// They share it: only the first one calls what, which returns false if the version is no longer kept.
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
	w := wire.NewChunks(b.compressors)
	for _, name := range gone {
		w.Deleted(name)
	}
	for _, name := range stale {
		w.Change(sink.Change{Name: name, New: state.Service(name)})
	}
	return w.Done()
}

// maxDifferences is for how many older versions batches are kept. Few are needed: most clients have one of the last
// versions. But a client may say that it has any of those that it could resume from, one after the other.
const maxDifferences = 64

// batchOf returns the batch that clients at a version share. If there are too many, it drops the least recently used
// one, but never the one for clients without a version.
func batchOf(b *batches, of map[*version]*batch, v *version) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uses++
	found := of[v]
	if found == nil {
		if len(of) >= maxDifferences {
			var last *version
			for other, batch := range of {
				if other != nil && (last == nil || batch.used < of[last].used) {
					last = other
				}
			}
			delete(of, last)
		}
		found = &batch{}
		of[v] = found
	}
	found.used = b.uses
	return found
}

// difference returns the encoded changes from an older version, or from nothing if old is nil, to the current one,
// which the batches are for.
func (b *batches) difference(ctx context.Context, old, current *version) *batch {
	found := batchOf(b, b.by, old)
	found.once.Do(func() {
		deltas, triggers, ok := changesBetween(ctx, old, current)
		if !ok {
			found.lost = true
			return
		}
		w := wire.NewChunks(b.compressors)
		for _, d := range deltas {
			w.Delta(d)
		}
		w.Triggers(triggers)
		found.chunks = w.Done()
		if old != nil && len(found.chunks) == 1 {
			found.whole = wire.Join(wire.Encode(&remotev1.Update{Kind: remotev1.Kind_DIFF}), found.chunks[0],
				wire.Encode(&remotev1.Update{Sync: &remotev1.Sync{Revision: current.revision,
					NodeVIPs: current.progress.nodeVIPsSince(old.progress),
					Seen:     current.progress.changed.Since(old.progress.changed)}})).Flat()
		}
	})
	return found
}
