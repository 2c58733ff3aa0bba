package fakemodel

import (
	"context"
	"fmt"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// RevisionSink numbers the states that a sink has put in force, for tests that wait for one. See [Revisions].
type RevisionSink struct {
	*sink.TeeSink
	next sink.Sink

	mu       sync.Mutex
	revision uint64
	changed  chan struct{} // closed at the next revision
}

// Revisions returns a sink that passes everything on and counts the Syncs that succeeded. A test that runs a sink in the
// background notes the Revision, causes a change, and waits for the next one; it has no reason to sleep.
func Revisions(next sink.Sink) *RevisionSink {
	return &RevisionSink{TeeSink: sink.Tee(next), next: next, changed: make(chan struct{})}
}

// Revision returns how many Syncs succeeded so far.
func (r *RevisionSink) Revision() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// Wait waits until a revision is reached. The error says which one was when ctx ended.
func (r *RevisionSink) Wait(ctx context.Context, revision uint64) error {
	for {
		r.mu.Lock()
		current, changed := r.revision, r.changed
		r.mu.Unlock()
		if current >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for revision %d, got as far as %d: %w", revision, current, context.Cause(ctx))
		}
	}
}

// Sync implements [sink.Sink].
func (r *RevisionSink) Sync(ctx context.Context) error {
	if err := r.next.Sync(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}
