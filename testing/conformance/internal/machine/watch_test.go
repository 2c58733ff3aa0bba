package machine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// fake is a machine with two processors, on which programs have threads that never wait.
type fake struct {
	mu                   sync.Mutex
	at                   time.Time
	others, ours         int     // threads
	steal                float64 // share of the processors
	all, busy, own, lost time.Duration
}

// set changes what runs.
func (f *fake) set(others, ours int, steal float64) {
	f.advance()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others, f.ours, f.steal = others, ours, steal
}

// advance lets the threads use the processors until now, each as much as any other.
func (f *fake) advance() {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := 2 * time.Since(f.at)
	f.at = time.Now()
	f.all += all
	f.lost += time.Duration(float64(all) * f.steal)
	threads := f.others + f.ours
	if threads == 0 {
		return
	}
	busy := time.Duration(float64(all) * (1 - f.steal) * min(1, float64(threads)/2))
	f.busy += busy
	f.own += busy * time.Duration(f.ours) / time.Duration(threads)
}

func (f *fake) counters() Reading {
	f.advance()
	f.mu.Lock()
	defer f.mu.Unlock()
	return Reading{All: f.all, Busy: f.busy, Steal: f.lost, Runnable: f.others + f.ours}
}

func (f *fake) oursUsed() time.Duration {
	f.advance()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.own
}

// watched calls test while a fake machine is watched, in virtual time.
func watched(t *testing.T, test func(t *testing.T, f *fake, w *Watch)) {
	t.Helper()
	watchedAs(t, false, test)
}

// watchedAs is watched for a machine that may never count as busy.
func watchedAs(t *testing.T, neverBusy bool, test func(t *testing.T, f *fake, w *Watch)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{at: time.Now()}
		w := New(Source{Processors: 2, Counters: f.counters, Ours: f.oursUsed, Load: func() float64 { return 1.5 },
			NeverBusy: neverBusy})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		test(t, f, w)
		cancel()
		wg.Wait()
	})
}

// A machine is too busy if other programs have many threads, or make a control connection late.
func TestWhenTheMachineIsTooBusy(t *testing.T) {
	for name, tc := range map[string]struct {
		others, ours int
		steal        float64
		delay        time.Duration
		want         string
	}{
		"nothing runs":                                {0, 0, 0, 0, ""},
		"others have some threads":                    {6, 2, 0, 0, ""},
		"others have many threads":                    {50, 2, 0, 0, "had 25 threads ready"},
		"the program has many threads":                {0, 50, 0, 0, ""},
		"the program has many threads, and is late":   {0, 50, 0, 5 * time.Second, ""},
		"the program has most of the threads":         {2, 48, 0, 5 * time.Second, ""},
		"both have many threads":                      {50, 50, 0, 0, "had 25 threads ready"},
		"a control is late, and others have threads":  {3, 1, 0, 600 * time.Millisecond, "took 600ms, and others had 75 %"},
		"a control is late, and much is stolen":       {0, 1, 0.5, 600 * time.Millisecond, "took 600ms, and others had 50 %"},
		"a control is late, and there is nobody else": {0, 2, 0, 5 * time.Second, ""},
		"a control is not late, and others have some": {3, 1, 0, 400 * time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, func(t *testing.T, f *fake, w *Watch) {
				f.set(tc.others, tc.ours, tc.steal)
				w.ended(w.NewControl(nil), tc.delay)
				began := time.Now()
				time.Sleep(500 * time.Millisecond)
				if why := w.Busy(began); tc.want == "" {
					assert.Empty(t, why)
				} else {
					assert.Contains(t, why, "the machine was too busy: ")
					assert.Contains(t, why, tc.want)
				}
			})
		})
	}
}

// A control connection that has not ended counts as late, and so does one that loses packets.
func TestControlsThatAreLate(t *testing.T) {
	watched(t, func(t *testing.T, f *fake, w *Watch) {
		f.set(4, 1, 0)
		for name, try := range map[string]func() bool{
			"in time":    func() bool { return true },
			"lost":       func() bool { return false },
			"not at all": func() bool { time.Sleep(2 * time.Second); return true },
		} {
			time.Sleep(2 * moment)
			began := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { w.NewControl(try).Run(ctx) })
			time.Sleep(700 * time.Millisecond)
			assert.Equal(t, name != "in time", w.Busy(began) != "", name)
			cancel()
			wg.Wait()
		}
	})
}

// Only the load since a given time counts, also for how long a wait may last.
func TestOnlyTheTimeInQuestionCounts(t *testing.T) {
	watched(t, func(t *testing.T, f *fake, w *Watch) {
		began := time.Now()
		time.Sleep(5 * time.Second)
		f.set(50, 0, 0)
		during := time.Now()
		time.Sleep(3 * time.Second)
		f.set(0, 1, 0)
		w.AwaitQuiet(t.Context(), time.Minute)
		after := time.Now()
		assert.Less(t, after.Sub(during), 7*time.Second)
		time.Sleep(5 * time.Second)
		assert.NotEmpty(t, w.Busy(began))
		assert.NotEmpty(t, w.Busy(during))
		assert.Empty(t, w.Busy(after))
		assert.InDelta(t, 3*time.Second, w.BusyTime(began), float64(1100*time.Millisecond))
		assert.Less(t, w.BusyTime(during.Add(2*time.Second)), 2100*time.Millisecond)
		assert.Zero(t, w.BusyTime(after))
	})
}

// Others may share the machine without keeping it too busy.
func TestWhoSharesTheMachine(t *testing.T) {
	watched(t, func(t *testing.T, f *fake, w *Watch) {
		f.set(1, 1, 0)
		time.Sleep(10 * time.Second)
		assert.Empty(t, w.Busy(time.Now().Add(-5*time.Second)))
		assert.Equal(t, "others had 50 % of the processors", w.Shared(time.Now().Add(-5*time.Second)))
		f.set(0, 2, 0)
		alone := time.Now()
		time.Sleep(10 * time.Second)
		assert.Empty(t, w.Shared(alone.Add(moment)))
	})
}

func TestWhoWantsAVerdictAllTheSame(t *testing.T) {
	watchedAs(t, true, func(t *testing.T, f *fake, w *Watch) {
		f.set(50, 0, 0)
		time.Sleep(time.Second)
		assert.Empty(t, w.Busy(time.Now().Add(-time.Second)))
		assert.Empty(t, w.Shared(time.Time{}))
		assert.Equal(t, 100, w.Summary().Others)
	})
}

// A machine that does not become quiet is not waited for.
func TestAMachineThatStaysBusy(t *testing.T) {
	watched(t, func(t *testing.T, f *fake, w *Watch) {
		f.set(50, 0, 0)
		time.Sleep(2 * time.Second)
		began := time.Now()
		w.AwaitQuiet(t.Context(), 10*time.Second)
		assert.InDelta(t, 10*time.Second, time.Since(began), float64(2*time.Second))
	})
}

func TestTheSummary(t *testing.T) {
	watched(t, func(t *testing.T, f *fake, w *Watch) {
		f.set(3, 1, 0.5)
		time.Sleep(time.Minute)
		assert.Equal(t, "2 processors, load average 1.5 before and 1.5 after, used by others 38 %, stolen 50 %",
			w.Summary().String())
	})
}
