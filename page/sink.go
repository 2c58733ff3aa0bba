package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// reported has what the backend has said during this Sync about services that it does not serve as a whole.
	reported map[model.ServiceName][]string
}

// Sink wraps next, which is the backend or middleware around it: it passes every call on, and the page shows the
// result. Sync returns what next returns. If next is a [sink.Describer], a [sink.Repairer], a
// [sink.ProblemReporter] or a [sink.TrafficCounter], the page uses that.
//
// A page has one sink.
func (p *Page) Sink(next sink.Sink) sink.Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = next
	f := &feeder{page: p, next: sink.NewForward(next), reported: map[model.ServiceName][]string{}}
	if r, ok := next.(sink.ProblemReporter); ok {
		r.ReportProblems(func(name model.ServiceName, problems []string) { f.reported[name] = problems })
	}
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
	f.page.synced(f, start, end, err)
	f.reported = map[model.ServiceName][]string{}
	return err
}

// synced shows the result of a Sync. The snapshot is nil if nothing changed.
func (p *Page) synced(f *feeder, start, end time.Time, err error) {
	result := &syncResult{At: end.UTC(), Duration: end.Sub(start).Round(time.Microsecond).String()}
	if err != nil {
		result.whole = err.Error()
		result.Error = shorten(result.whole)
	}
	result.failed = sink.FailedFamilies(err)
	result.Failed = result.failed != 0
	var failing map[model.ServiceName][]string
	for _, e := range sink.PortErrors(err) {
		if failing == nil {
			failing = map[model.ServiceName][]string{}
		}
		failing[e.Port.Service] = append(failing[e.Port.Service], e.Error())
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.sync == nil
	failedBefore := !first && p.sync.whole == result.whole
	suspects := map[model.ServiceName]bool{} // whose problems may have changed: true if the service itself has
	for _, list := range []map[model.ServiceName][]string{p.failing, failing, f.reported} {
		for name := range list {
			suspects[name] = false
		}
	}
	for name, problems := range f.reported {
		if p.unserved[name] = problems; len(problems) == 0 {
			delete(p.unserved, name)
		}
	}
	p.sync, p.failing = result, failing
	p.busy.turn(end)
	changed := p.follow(f.new, end.UTC(), first, suspects)
	for _, family := range model.Families() {
		if !result.failed.Has(family) {
			*p.applied.At(family) = appliedState{p.snapshot, result.At}
		}
	}
	for name, changed := range suspects {
		d := diagnose(name, p.snapshot.Service(name), failing[name], p.unserved[name])
		if p.problems.set(d) && !changed {
			p.told++
		}
	}
	if len(suspects) > 0 {
		p.shown, p.busiest = p.problems.copy(), nil
	}
	p.log.addSync(syncPoint{At: result.At, Micros: end.Sub(start).Microseconds(), Services: changed,
		Failed: result.Failed})
	if err != nil && !failedBefore && !errors.Is(err, context.Canceled) {
		p.log.add(event{At: end.UTC(), Kind: kindError, Text: result.Error})
	}
	close(p.updated)
	p.updated = make(chan struct{})
}

// follow takes over a snapshot, unless it is nil, and adds the services that differ from the one before to suspects. It
// returns how many do.
func (p *Page) follow(next *sink.Snapshot, at time.Time, first bool, suspects map[model.ServiceName]bool) (n int) {
	if next == nil {
		return 0
	}
	before := p.snapshot
	if p.snapshot = next; first {
		p.log.listed(at, next)
	} else if !next.Node().Equal(before.Node()) && next.Node() != nil {
		p.log.add(event{At: at, Kind: kindNode, Text: next.Node().String()})
	}
	for c := range next.ChangesSince(before) {
		n++
		suspects[c.Name] = true
		p.totals.follow(&c)
		if !first {
			p.busy.add(c.Name)
			p.log.change(at, &c, n)
		}
	}
	if n > maxPerSync && !first {
		p.log.add(event{At: at, Kind: kindChange, Text: fmt.Sprintf("and %d more services", n-maxPerSync)})
	}
	return n
}

// totals has the numbers of services and endpoints, by family.
type totals model.PerFamily[total]

// total has the numbers of one family.
type total struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
}

// follow counts a change.
func (t *totals) follow(c *sink.Change) {
	families := (*model.PerFamily[total])(t)
	for by, e := range map[int]*sink.ServiceEntry{-1: c.Old, 1: c.New} {
		for _, f := range model.Families() {
			if e != nil && slices.ContainsFunc(e.Service.Ports, func(p model.ServicePort) bool {
				return p.Routes(f) != (model.Routes{})
			}) {
				families.At(f).Services += by
			}
		}
	}
	for before, after := range c.Endpoints() {
		if before != nil {
			families.At(before.Family()).Endpoints--
		}
		if after != nil {
			families.At(after.Family()).Endpoints++
		}
	}
}
