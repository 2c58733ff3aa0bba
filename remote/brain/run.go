package brain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Run follows the source until ctx ends, and then returns nil; or until the source fails. It can be called once.
// Clients are served once everything has been listed.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.started
	s.started = true
	s.mu.Unlock()
	if again {
		return errors.New("a Server can be used only once")
	}
	unregister, err := s.registerMetrics(s.opts.Metrics)
	if err != nil {
		return err
	}
	defer unregister()
	ctx, cancel := context.WithCancel(ctx)
	var makes sync.WaitGroup
	makes.Go(func() { s.makeAwaited(ctx) })
	defer makes.Wait()
	ended := make(chan error, 1)
	go func() { ended <- s.opts.Source.Run(ctx, watch.AllNodes, serverHandler{s}) }()
	var sourceErr error
	sourceEnded := ended
	changed := s.changed // nil while the server waits after a revision
	var waited <-chan time.Time
loop:
	for {
		select {
		case <-ctx.Done():
			break loop
		case err := <-sourceEnded:
			sourceEnded = nil
			if ctx.Err() == nil && err != nil {
				sourceErr = fmt.Errorf("source: %w", err)
				break loop
			}
		case <-changed:
			s.publishPaced(ctx)
			changed, waited = nil, time.After(s.pace.wait(time.Now()))
		case <-waited:
			if wait := s.pace.wait(time.Now()); wait > 0 {
				waited = time.After(wait)
			} else {
				changed, waited = s.changed, nil
			}
		}
	}
	cancel()
	if sourceEnded != nil {
		<-ended
	}
	s.mu.Lock()
	s.synced = false // clients that connect now are sent to another replica
	for _, clients := range s.byNode {
		for client := range clients {
			client.end(errServerEnds)
		}
	}
	s.mu.Unlock()
	return sourceErr
}

// publishPaced publishes, and records the cost.
func (s *Server) publishPaced(ctx context.Context) {
	begin := time.Now()
	s.publishing.Store(&begin)
	s.pace.begin(begin)
	work := s.publish(ctx)
	end := time.Now()
	s.pace.end(end, work)
	s.publishing.Store(nil)
	s.metrics.publish.Observe(end.Sub(begin).Seconds())
}

// Drain sends clients away before the server ends: one after the other, in random order, spread over a time, so that
// the other servers get them one by one, too. The clients resume there. Each is served until it is sent away; new
// clients are refused, and Ready returns an error. Drain returns when all have been sent away, or when ctx ends. End
// the context of Run and Serve afterwards: without Drain, that sends all clients away at once.
func (s *Server) Drain(ctx context.Context, over time.Duration) {
	s.mu.Lock()
	s.draining = true
	all := make([]*client, 0, s.connected)
	for _, clients := range s.byNode {
		all = slices.AppendSeq(all, maps.Keys(clients))
	}
	s.mu.Unlock()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	begin := time.Now()
	for i, client := range all {
		if wait := over*time.Duration(i)/time.Duration(len(all)) - time.Since(begin); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		client.end(errServerEnds)
	}
}

// Ready returns why clients should not be sent here, for a readiness probe: not everything has been listed, the server
// is about to end, or it is out of date, because it hangs or because the API server is silent. nil: they may be sent.
func (s *Server) Ready() error {
	s.mu.Lock()
	synced, draining := s.synced, s.draining
	s.mu.Unlock()
	switch {
	case !synced:
		return errNotListed
	case draining:
		return errServerEnds
	}
	return s.fresh()
}
