package page

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// feeder is the middleware that a page learns everything from.
type feeder struct {
	*sink.Forward
	page *Page
	full *sink.FullState
	next *sink.Snapshot // what the page is to show after this Sync
}

// Sink returns the sink to feed instead of next, which is the backend or what is wrapped around it: it passes every
// call on, and has the page show what it is told. Sync returns what next returns. If next is a [sink.Describer] or a
// [sink.Repairer], the page asks it.
//
// A page has one sink.
func (p *Page) Sink(next sink.Sink) sink.Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = next
	f := &feeder{Forward: sink.NewForward(next), page: p}
	f.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		f.next = s
		return nil
	})
	return f
}

// SetNode implements [sink.NodeSetter].
func (f *feeder) SetNode(n *model.Node) {
	f.full.SetNode(n)
	f.Forward.SetNode(n)
}

// SetService implements [sink.Sink].
func (f *feeder) SetService(s *model.Service) {
	f.full.SetService(s)
	f.Forward.SetService(s)
}

// DeleteService implements [sink.Sink].
func (f *feeder) DeleteService(name model.ServiceName) {
	f.full.DeleteService(name)
	f.Forward.DeleteService(name)
}

// SetEndpoint implements [sink.Sink].
func (f *feeder) SetEndpoint(e *model.Endpoint) {
	f.full.SetEndpoint(e)
	f.Forward.SetEndpoint(e)
}

// DeleteEndpoint implements [sink.Sink].
func (f *feeder) DeleteEndpoint(key model.EndpointKey) {
	f.full.DeleteEndpoint(key)
	f.Forward.DeleteEndpoint(key)
}

// Sync implements [sink.Sink].
func (f *feeder) Sync(ctx context.Context) error {
	start := time.Now()
	err := f.Forward.Sync(ctx)
	end := time.Now()
	f.next = nil
	_ = f.full.Sync(ctx) // the callback does not fail
	f.page.synced(f.next, start, end, err)
	return err
}

// synced shows what a Sync came to. The snapshot is nil if nothing changed.
func (p *Page) synced(next *sink.Snapshot, start, end time.Time, err error) {
	result := &syncResult{At: end.UTC(), Duration: end.Sub(start).Round(time.Microsecond).String()}
	if err != nil {
		result.Error = err.Error()
	}
	var failing map[model.ServiceName][]string
	for _, e := range sink.PortErrors(err) {
		if failing == nil {
			failing = map[model.ServiceName][]string{}
		}
		failing[e.Port.Service] = append(failing[e.Port.Service], e.Error())
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.snapshot
	first := p.sync == nil
	failedBefore := !first && p.sync.Error == result.Error
	p.sync, p.failing = result, failing
	switch {
	case next == nil:
	case first:
		p.log.listed(end, next)
		p.snapshot = next
	default:
		p.log.changes(end, before, next)
		p.snapshot = next
	}
	if err != nil && !failedBefore && !errors.Is(err, context.Canceled) {
		p.log.add(Event{At: end.UTC(), Kind: KindError, Text: shorten(result.Error)})
	}
	close(p.updated)
	p.updated = make(chan struct{})
}
