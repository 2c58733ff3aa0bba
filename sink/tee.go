package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// TeeSink feeds several sinks. See [Tee].
type TeeSink struct {
	sinks []*Forward
	last  []error // of the last Sync, by sink
	err   error   // all of last
}

// Tee returns a Sink that passes every call to all the sinks, in order. Without sinks it does nothing.
//
// Sync calls all of them, whether or not one fails, and joins the errors, each wrapped with the position and the type
// of its sink. What succeeded is applied: a failing sink does not affect the others. Before a retry only the sinks that
// failed are asked to resync.
func Tee(sinks ...Sink) *TeeSink {
	t := &TeeSink{}
	for _, s := range sinks {
		t.sinks = append(t.sinks, NewForward(s))
	}
	return t
}

func (t *TeeSink) each(f func(*Forward)) {
	for _, s := range t.sinks {
		f(s)
	}
}

// SetNode implements [NodeSetter].
func (t *TeeSink) SetNode(node *model.Node) { t.each(func(s *Forward) { s.SetNode(node) }) }

// SetService implements [Sink].
func (t *TeeSink) SetService(service *model.Service) {
	t.each(func(s *Forward) { s.SetService(service) })
}

// DeleteService implements [Sink].
func (t *TeeSink) DeleteService(name model.ServiceName) {
	t.each(func(s *Forward) { s.DeleteService(name) })
}

// SetEndpoint implements [Sink].
func (t *TeeSink) SetEndpoint(endpoint *model.Endpoint) {
	t.each(func(s *Forward) { s.SetEndpoint(endpoint) })
}

// DeleteEndpoint implements [Sink].
func (t *TeeSink) DeleteEndpoint(key model.EndpointKey) {
	t.each(func(s *Forward) { s.DeleteEndpoint(key) })
}

// ForceResync implements [Resyncer].
func (t *TeeSink) ForceResync() { t.each(func(s *Forward) { s.ForceResync() }) }

// ResyncFailed implements [FailureResyncer]: it asks the sinks whose last Sync failed.
func (t *TeeSink) ResyncFailed() { t.each(func(s *Forward) { s.ResyncFailed() }) }

// Sync implements [Sink].
func (t *TeeSink) Sync(ctx context.Context) error {
	now := make([]error, len(t.sinks))
	for i, s := range t.sinks {
		now[i] = s.Sync(ctx)
	}
	if slices.EqualFunc(now, t.last, syncing.SameError) {
		return t.err // the same value, so that wrappers of this sink recognise it
	}
	var errs []error
	for i, err := range now {
		if err != nil {
			errs = append(errs, fmt.Errorf("sink %d (%T): %w", i+1, t.sinks[i].next, err))
		}
	}
	t.last, t.err = now, errors.Join(errs...)
	return t.err
}

// Yield implements [Yielder]: it returns the longest time that one of the sinks asks for.
func (t *TeeSink) Yield() (wait time.Duration) {
	t.each(func(s *Forward) { wait = max(wait, s.Yield()) })
	return wait
}
