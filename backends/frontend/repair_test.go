package frontend

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// checker counts checks, by family and in seconds since the start.
type checker struct {
	start time.Time
	check map[model.Family]func() (CheckResult, error)

	mu     sync.Mutex
	checks map[model.Family][]float64
}

func newChecker() *checker {
	return &checker{start: time.Now(), checks: map[model.Family][]float64{},
		check: map[model.Family]func() (CheckResult, error){}}
}

func (l *checker) Check(_ context.Context, c *Changes) (CheckResult, error) {
	f := c.Family()
	l.mu.Lock()
	l.checks[f] = append(l.checks[f], time.Since(l.start).Seconds())
	l.mu.Unlock()
	if l.check[f] != nil {
		return l.check[f]()
	}
	return CheckResult{}, nil
}

// of returns the checks of a family so far.
func (l *checker) of(f model.Family) []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.checks[f])
}

// repairing runs Repair until the function returns.
func repairing(t *testing.T, r *rig, every time.Duration, wake <-chan struct{},
	check func(context.Context, *Changes) (CheckResult, error), during func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Repair(ctx, every, wake, check)
	}()
	during()
	cancel()
	<-done
}

// However much there is to check, nothing is checked once the context has ended.
func TestNothingIsCheckedAfterTheEnd(t *testing.T) {
	r, l := newRig(t), newChecker()
	r.sync(t)
	ended, end := context.WithCancel(t.Context())
	end()
	for range 100 {
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		r.Repair(ended, 0, wake, l.Check)
	}
	assert.Empty(t, l.of(model.IPv4))
}

func TestNothingIsCheckedBeforeTheFirstSyncAndAfterCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newChecker()
		repairing(t, r, time.Second, nil, l.Check, func() {
			time.Sleep(1500 * time.Millisecond)
			assert.Empty(t, l.of(model.IPv4))
			r.sync(t)
			time.Sleep(time.Second)
			assert.Len(t, l.of(model.IPv4), 1)
			assert.NoError(t, r.CleanUp(t.Context(), func(context.Context) error { return nil }))
			time.Sleep(10 * time.Second)
		})
		assert.Equal(t, []float64{2}, l.of(model.IPv4))
	})
}

// A repair uses the Node of the last Sync, not one that was set since.
func TestARepairSeesTheNodeOfTheLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetNode(&model.Node{Name: "n1", Zone: "before"})
		r.sync(t)
		var seen []string
		check := func(_ context.Context, c *Changes) (CheckResult, error) {
			seen = append(seen, c.Node().Zone)
			return CheckResult{}, nil
		}
		repairing(t, r, time.Second, nil, check, func() {
			time.Sleep(1500 * time.Millisecond)
			r.SetNode(&model.Node{Name: "n1", Zone: "after"})
			time.Sleep(time.Second)
		})
		assert.NotEmpty(t, seen)
		assert.NotContains(t, seen, "after")
	})
}

func TestAWakeIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newChecker()
		r.sync(t)
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Check, func() {
			time.Sleep(time.Second)
			wake <- struct{}{}
			wake <- struct{}{}
			synctest.Wait()
		})
		assert.Equal(t, []float64{1, 1}, l.of(model.IPv4))
	})
}

func TestAFamilyThatCannotBeRepairedWaitsAloneAndLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newChecker()
		r.sync(t)
		l.check[model.IPv4] = func() (CheckResult, error) { return CheckResult{}, errDataplane }
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Check, func() {
			wake <- struct{}{}
			time.Sleep(5500 * time.Millisecond)
			wake <- struct{}{}
			time.Sleep(105 * time.Second)
		})
		assert.InDeltaSlice(t, []float64{0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 25.5, 51.1, 81.1}, l.of(model.IPv4),
			0.001)
		assert.Equal(t, []float64{0, 5.5}, l.of(model.IPv6))
	})
}

func TestWhatSomebodyChangesAgainAndAgainIsRepairedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newChecker()
		r.sync(t)
		// Where looking is expensive the pause begins with the rest.
		l.check[model.IPv4] = func() (CheckResult, error) {
			return CheckResult{Repaired: true, Pause: time.Second}, nil
		}
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Check, func() {
			for range 100 {
				wake <- struct{}{}
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(3 * time.Minute)
			wake <- struct{}{}
			synctest.Wait()
			wake <- struct{}{}
			time.Sleep(time.Second)
		})
		assert.InDeltaSlice(t, []float64{0, 1, 3, 7, 15, 190, 191}, l.of(model.IPv4), 0.01)
	})
}

func TestAPauseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newChecker()
		r.sync(t)
		l.check[model.IPv4] = func() (CheckResult, error) { return CheckResult{Pause: 10 * time.Second}, nil }
		repairing(t, r, time.Second, nil, l.Check, func() {
			time.Sleep(12500 * time.Millisecond)
		})
		assert.Equal(t, []float64{1, 11}, l.of(model.IPv4))
		assert.Len(t, l.of(model.IPv6), 12)
	})
}

func TestARepairThatAcceptsLeavesNothingToTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.v4.fail = errDataplane
		r.set(web().Build())
		assert.Error(t, r.Sync(t.Context()))
		r.v4.fail = nil
		wake := make(chan struct{})
		check := func(ctx context.Context, c *Changes) (CheckResult, error) {
			if c.Family() == model.IPv6 {
				return CheckResult{}, nil
			}
			err := r.v4.apply(ctx, c)
			c.Accept()
			return CheckResult{Repaired: true}, err
		}
		repairing(t, r, 0, wake, check, func() {
			wake <- struct{}{}
			synctest.Wait()
		})
		assert.Len(t, r.v4.ports, 1)
		r.sync(t)
		assert.Empty(t, r.v4.told)
	})
}
