package machine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// The limits. Below them, a correct proxy passes the suite.
const (
	// mostThreads is the number of threads of other programs, ready to run, for each processor.
	mostThreads = 4
	// mostDelay is the duration of a control connection, and mostShare the share of the processors' time that is lost to
	// others meanwhile: the machine is too busy if both are reached. If others use less, the delay is due to the judge or
	// its program.
	mostDelay = 500 * time.Millisecond
	mostShare = 0.25
)

// interval is the time between two readings, and moment the minimum length of the periods that are judged. The counters
// are not read at the same instant, so much shorter periods would say little.
const (
	interval = 100 * time.Millisecond
	moment   = time.Second
)

// Reading is the state of the machine's counters.
type Reading struct {
	// All is the time that all processors had, Busy the part in which processes ran, and Steal the part that the
	// hypervisor gave to other machines.
	All, Busy, Steal time.Duration
	// Ours is the part of Busy that the judge and its programs used.
	Ours time.Duration
	// Waited is the time in which some thread waited for a processor, 0 if unknown.
	Waited time.Duration
	// Runnable is the number of threads that run or wait for a processor at this moment.
	Runnable int
}

// Source reads the machine.
type Source struct {
	Processors int
	// Counters reads everything but Ours, and Ours reads that. Load returns the load average.
	Counters func() Reading
	Ours     func() time.Duration
	Load     func() float64
	// NeverBusy: no period is too busy.
	NeverBusy bool
}

// Watch watches the machine during a run. Its methods may be called concurrently.
type Watch struct {
	source  Source
	reading sync.Mutex // held while a reading is taken and used

	mu           sync.Mutex
	began, begun time.Time // of the run, and of the current period
	first, last  Reading   // at these times
	load         float64   // at the beginning
	runnable     int       // sum over the readings of the current period
	readings     int
	delay        time.Duration          // the longest of a control connection in the current period
	open         map[*Control]time.Time // control connections that have not ended, and when they were due
	periods      []period
}

// period is a period of a moment or more.
type period struct {
	from, to time.Time
	why      string  // it was too busy; "": it was not
	lost     float64 // how much of the processors' time was lost to others
}

// New returns a watch that has begun.
func New(s Source) *Watch {
	w := &Watch{source: s, began: time.Now(), open: map[*Control]time.Time{}, load: s.Load()}
	w.first = w.read()
	w.begun, w.last = w.began, w.first
	return w
}

// read reads everything. Reading Ours takes time on a busy machine, so the other times are averaged over before and
// after.
func (w *Watch) read() Reading {
	r := w.source.Counters()
	r.Ours = w.source.Ours()
	after := w.source.Counters()
	r.All = (r.All + after.All) / 2
	r.Busy = (r.Busy + after.Busy) / 2
	r.Steal = (r.Steal + after.Steal) / 2
	return r
}

// Run reads the machine until the context ends.
func (w *Watch) Run(ctx context.Context) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			w.tick()
		}
	}
}

// tick reads the machine, and ends the current period if it has lasted long enough.
func (w *Watch) tick() {
	w.reading.Lock()
	defer w.reading.Unlock()
	if !w.count(w.source.Counters().Runnable) {
		return
	}
	now := w.read() // without mu: it takes time, and control connections must not wait for it
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now()
	for _, due := range w.open {
		w.delay = max(w.delay, at.Sub(due))
	}
	others, steal := shares(w.last, now)
	w.periods = append(w.periods, period{w.begun, at, w.whyBusy(now), others + steal})
	w.begun, w.last, w.runnable, w.readings, w.delay = at, now, 0, 0, 0
}

// count adds a number of threads to the current period, and reports whether that has lasted long enough.
func (w *Watch) count(runnable int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runnable += runnable
	w.readings++
	return time.Since(w.begun) >= moment
}

// whyBusy returns why the current period, which ends now, was too busy, or "".
func (w *Watch) whyBusy(now Reading) string {
	if w.source.NeverBusy {
		return ""
	}
	others, steal := shares(w.last, now)
	threads := 0.0
	if busy := now.Busy - w.last.Busy; busy > 0 {
		// Threads share the processors evenly, so the share of the others is the same of the threads as of the time.
		all := float64(w.runnable) / float64(w.readings*w.source.Processors)
		threads = all * others * float64(now.All-w.last.All) / float64(busy)
	}
	switch {
	case threads >= mostThreads:
		return fmt.Sprintf("the machine was too busy: other programs had %.0f threads ready to run for each processor",
			threads)
	case w.delay >= mostDelay && others+steal >= mostShare:
		return fmt.Sprintf("the machine was too busy: a connection that no proxy handles took %v, and others had %.0f %% of "+
			"the processors", w.delay.Round(10*time.Millisecond), 100*(others+steal))
	}
	return ""
}

// shares returns how much of the processors' time other programs used, and how much the hypervisor took.
func shares(from, to Reading) (others, steal float64) {
	all := to.All - from.All
	if all <= 0 {
		return 0, 0
	}
	part := func(of time.Duration) float64 { return min(1, max(0, float64(of)/float64(all))) }
	return part(to.Busy - from.Busy - (to.Ours - from.Ours)), part(to.Steal - from.Steal)
}

// Busy returns why the machine was too busy to judge what happened since a time, or "". It waits for the end of the
// current period.
func (w *Watch) Busy(since time.Time) string {
	for called := time.Now(); !w.begunAfter(called); time.Sleep(interval) {
		w.tick()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.periods {
		if p.to.After(since) && p.why != "" {
			return p.why
		}
	}
	return ""
}

// Shared describes how much of the processors others have used since a time; "" if it was little. It does not count the
// current period.
func (w *Watch) Shared(since time.Time) string {
	if w.source.NeverBusy {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var all, lost float64 // seconds
	for _, p := range w.periods {
		if p.to.After(since) {
			took := p.to.Sub(p.from).Seconds()
			all, lost = all+took, lost+took*p.lost
		}
	}
	if lost < mostShare*all || all == 0 {
		return ""
	}
	return fmt.Sprintf("others had %d %% of the processors", percent(lost/all))
}

// begunAfter reports whether the current period began after a time.
func (w *Watch) begunAfter(t time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun.After(t)
}

// BusyTime returns for how long the machine was too busy since a time.
func (w *Watch) BusyTime(since time.Time) (total time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.periods {
		if p.why == "" {
			continue
		}
		from := p.from
		if since.After(from) {
			from = since
		}
		total += max(0, p.to.Sub(from))
	}
	return total
}

// AwaitQuiet waits until the machine has not been too busy for a moment, at most as long as limit.
func (w *Watch) AwaitQuiet(ctx context.Context, limit time.Duration) {
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(moment + interval):
		}
		if w.Busy(time.Now().Add(-moment)) == "" || time.Since(began) >= limit {
			return
		}
	}
}

// Summary describes the machine from the beginning until now.
func (w *Watch) Summary() *report.Machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.read()
	others, steal := shares(w.first, now)
	m := &report.Machine{Processors: w.source.Processors, LoadBefore: w.load, LoadAfter: w.source.Load(),
		Others: percent(others), Steal: percent(steal)}
	if took := time.Since(w.began); took > 0 {
		m.Waiting = percent(float64(now.Waited-w.first.Waited) / float64(took))
	}
	return m
}

func percent(share float64) int { return int(100*share + 0.5) }
