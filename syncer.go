package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Syncer asks a run for a Sync and waits for it: see [Options.Syncer]. The zero value is ready for use. It serves one
// run at a time.
type Syncer struct {
	mu    sync.Mutex
	run   *feedHandler // the current run; nil: none
	ended error        // how the last run ended, until the next one begins; nil: there was none
	asked *syncRound   // the Sync that calls wait for, until it begins; nil: no call waits
}

// syncRound is a Sync that calls wait for. err may be read once done is closed.
type syncRound struct {
	done chan struct{}
	err  error
}

// ErrRunEnded is wrapped by the error of [Syncer.Sync] if the run has ended.
var ErrRunEnded = errors.New("the run has ended")

// Sync asks for a Sync, as Options.SyncRequests does, and waits until one has ended that began after the call. That
// Sync includes everything that the feed had delivered before the call, and what the sink reads elsewhere. Calls that
// wait at the same time share it. Sync may be called from any goroutine, except from those that call the sink: it would
// wait for itself.
//
// It returns nil if everything is applied, and otherwise
//
//   - the error of the sink's Sync: what it does not name is applied. The run tries again by itself, so there is no
//     need to call again, except to wait for the next attempt or change.
//   - an error that wraps [ErrRunEnded] and the error of Run, if there is one: the run ended before the Sync did. After
//     that calls fail at once, until the next run with this Syncer begins.
//   - the cause of ctx's end. The Sync still takes place.
//
// Before Run is called, and until the state is complete, it waits: a program may ask for readiness at any time.
func (s *Syncer) Sync(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if s.ended != nil {
		defer s.mu.Unlock()
		return s.ended
	}
	if s.asked == nil {
		s.asked = &syncRound{done: make(chan struct{})}
	}
	round := s.asked
	if s.run != nil {
		s.run.signal()
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-round.done:
		return round.err
	}
}

// begin starts a run.
func (s *Syncer) begin(run *feedHandler) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		return errors.New("invalid options: the Syncer is in use by another run")
	}
	s.run, s.ended = run, nil
	return nil
}

// end ends the run, with what Run returns.
func (s *Syncer) end(err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run, s.ended = nil, ErrRunEnded
	if err != nil {
		s.ended = fmt.Errorf("%w: %w", ErrRunEnded, err)
	}
	s.asked.finish(s.ended)
	s.asked = nil
}

// waits reports whether a call waits for a Sync that has not begun.
func (s *Syncer) waits() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked != nil
}

// take is called when a Sync begins. It returns the round that calls wait for, or nil.
func (s *Syncer) take() *syncRound {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	round := s.asked
	s.asked = nil
	return round
}

func (r *syncRound) finish(err error) {
	if r != nil {
		r.err = err
		close(r.done)
	}
}
