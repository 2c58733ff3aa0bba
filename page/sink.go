package page

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// feeder is the middleware through which a page gets its data. It passes every call to the next sink and to a full
// state; Sync returns the result of the next sink.
type feeder struct {
	*sink.TeeSink
	page *Page
	next *sink.Forward
	full *sink.FullState
	new  *sink.Snapshot // for the page to show after this Sync
}

// Sink wraps next, which is the backend or middleware around it: it passes every call on, and the page shows the
// result. Sync returns what next returns. If next is a [sink.Describer] or a [sink.Repairer], the page uses that.
//
// A page has one sink.
func (p *Page) Sink(next sink.Sink) sink.Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = next
	f := &feeder{page: p, next: sink.NewForward(next)}
	f.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		f.new = s
		return nil
	})
	f.TeeSink = sink.Tee(f.next, f.full)
	return f
}

// Sync implements [sink.Sink].
func (f *feeder) Sync(ctx context.Context) error {
	start := time.Now()
	err := f.next.Sync(ctx)
	end := time.Now()
	f.new = nil
	_ = f.full.Sync(ctx) // the callback does not fail
	f.page.synced(f.new, start, end, err)
	return err
}

// synced shows the result of a Sync. The snapshot is nil if nothing changed.
func (p *Page) synced(next *sink.Snapshot, start, end time.Time, err error) {
	result := &syncResult{At: end.UTC(), Duration: end.Sub(start).Round(time.Microsecond).String()}
	if err != nil {
		result.whole = err.Error()
		result.Error = shorten(result.whole)
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
	failedBefore := !first && p.sync.whole == result.whole
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
		p.log.add(event{At: end.UTC(), Kind: kindError, Text: result.Error})
	}
	close(p.updated)
	p.updated = make(chan struct{})
}
