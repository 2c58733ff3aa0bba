package page

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
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
	// unserved are services of which the backend does not serve a part.
	unserved map[model.ServiceName]bool
	// suspects are services whose problems may have changed in this Sync: true if the service itself has.
	suspects map[model.ServiceName]bool

	// The error of the last Sync, the result without times, and the service ports that failed.
	err     error
	result  syncResult
	failing map[model.ServiceName][]*sink.PortError
}

// Sink wraps next, which is the backend or middleware around it: it passes every call on, and the page shows the
// result. Sync returns what next returns. If next is a [sink.Describer], a [sink.Repairer] or a [sink.ProblemReporter],
// the page uses that.
//
// A page has one sink.
func (p *Page) Sink(next sink.Sink) sink.Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = next
	f := &feeder{page: p, next: sink.NewForward(next), unserved: map[model.ServiceName]bool{},
		suspects: map[model.ServiceName]bool{}}
	if r, ok := next.(sink.ProblemReporter); ok {
		r.ReportProblems(func(name model.ServiceName, any bool) {
			f.suspects[name] = false
			if f.unserved[name] = any; !any {
				delete(f.unserved, name)
			}
		})
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
	if len(f.suspects) > 100 { // the map would stay big, and take long to clear
		f.suspects = map[model.ServiceName]bool{}
	}
	clear(f.suspects)
	return err
}

// synced shows the result of a Sync. The snapshot is nil if nothing changed.
func (p *Page) synced(f *feeder, start, end time.Time, err error) {
	f.recordError(err)
	result := f.result
	result.At, result.Duration = end.UTC(), end.Sub(start).Round(time.Microsecond).String()

	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.sync == nil
	failedBefore := !first && p.sync.Error == result.Error && p.sync.failed == result.failed
	p.sync = &result
	p.busy.rotate(end)
	changed := p.follow(f.new, end.UTC(), first, f.suspects)
	for _, family := range model.Families() {
		if !result.failed.Has(family) {
			*p.applied.At(family) = appliedState{p.snapshot, result.At}
		}
	}
	for name, changed := range f.suspects {
		d := diagnose(name, p.snapshot.Service(name), f.failing[name], f.unserved[name])
		if (p.problems.set(d) || d.Status == statusUnserved) && !changed {
			p.told++
		}
	}
	if len(f.suspects) > 0 {
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

// recordError records an error, unless it is that of the previous Sync. The services whose errors have changed become
// suspects.
func (f *feeder) recordError(err error) {
	if syncing.SameError(err, f.err) {
		return
	}
	before := f.failing
	f.err, f.result = err, syncResult{failed: sink.FailedFamilies(err)}
	f.result.Failed = f.result.failed != 0
	f.result.Error = textOf(err)
	f.failing = map[model.ServiceName][]*sink.PortError{}
	for _, e := range sink.PortErrors(err) {
		f.failing[e.Port.Service] = append(f.failing[e.Port.Service], e)
	}
	for name, list := range f.failing {
		if !slices.Equal(list, before[name]) {
			f.suspects[name] = false
		}
	}
	for name := range before {
		if f.failing[name] == nil {
			f.suspects[name] = false
		}
	}
}

// textOf returns the beginning of an error's text, which may be of thousands of service ports.
func textOf(err error) string {
	switch e := err.(type) { //nolint:errorlint // it descends itself
	case nil:
		return ""
	case *sink.FamilyError:
		if e.Err != nil {
			return shorten(e.Family.String() + ": " + textOf(e.Err))
		}
	}
	if reflect.TypeOf(err) == reflect.TypeOf(errors.Join(io.EOF)) {
		list := err.(interface{ Unwrap() []error }).Unwrap()
		families := slices.DeleteFunc(slices.Clone(list), func(e error) bool { return sink.FailedFamilies(e) == 0 })
		ports := slices.DeleteFunc(slices.Clone(list), func(e error) bool { return sink.FailedFamilies(e) != 0 })
		return beginning(append(families, ports...), "\n")
	}
	return shorten(err.Error())
}

// beginning joins the texts of errors, as far as they are shown.
func beginning[E error](list []E, separator string) string {
	var b strings.Builder
	for i, e := range list {
		if i > 0 {
			b.WriteString(separator)
		}
		if b.WriteString(textOf(e)); b.Len() > maxErrorBytes {
			break
		}
	}
	return shorten(b.String())
}

// follow records a snapshot, unless it is nil, and adds the services that differ from the previous one to suspects. It
// returns their number.
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
				return *p.Routes.At(f) != (model.Routes{})
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
