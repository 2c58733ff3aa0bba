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

// looker counts looks, by family and in seconds since the start.
type looker struct {
	start time.Time
	look  map[model.Family]func() (Look, error)

	mu    sync.Mutex
	looks map[model.Family][]float64
}

func newLooker() *looker {
	return &looker{start: time.Now(), looks: map[model.Family][]float64{},
		look: map[model.Family]func() (Look, error){}}
}

func (l *looker) Look(_ context.Context, c *Changes) (Look, error) {
	f := c.Family()
	l.mu.Lock()
	l.looks[f] = append(l.looks[f], time.Since(l.start).Seconds())
	l.mu.Unlock()
	if l.look[f] != nil {
		return l.look[f]()
	}
	return Look{}, nil
}

// of returns the looks at a family so far.
func (l *looker) of(f model.Family) []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.looks[f])
}

// repairing runs Repair until the function returns.
func repairing(t *testing.T, r *rig, every time.Duration, wake <-chan struct{},
	look func(context.Context, *Changes) (Look, error), during func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Repair(ctx, every, wake, look)
	}()
	during()
	cancel()
	<-done
}

// However much there is to look at, nothing is looked at once the context has ended.
func TestNothingIsLookedAtAfterTheEnd(t *testing.T) {
	r, l := newRig(t), newLooker()
	r.sync(t)
	ended, end := context.WithCancel(t.Context())
	end()
	for range 100 {
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		r.Repair(ended, 0, wake, l.Look)
	}
	assert.Empty(t, l.of(model.IPv4))
}

func TestNothingIsLookedAtBeforeTheFirstSyncAndAfterCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newLooker()
		repairing(t, r, time.Second, nil, l.Look, func() {
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

// What is described and not applied yet is none of a repair's business, and described while it runs.
func TestARepairSeesTheNodeOfTheLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetNode(&model.Node{Name: "n1", Zone: "before"})
		r.sync(t)
		var seen []string
		look := func(_ context.Context, c *Changes) (Look, error) {
			seen = append(seen, c.Node().Zone)
			return Look{}, nil
		}
		repairing(t, r, time.Second, nil, look, func() {
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
		r, l := newRig(t), newLooker()
		r.sync(t)
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Look, func() {
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
		r, l := newRig(t), newLooker()
		r.sync(t)
		l.look[model.IPv4] = func() (Look, error) { return Look{}, errDataplane }
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Look, func() {
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
		r, l := newRig(t), newLooker()
		r.sync(t)
		// Where looking is expensive the pause begins with the rest.
		l.look[model.IPv4] = func() (Look, error) { return Look{Repaired: true, Rest: time.Second}, nil }
		wake := make(chan struct{})
		repairing(t, r, 0, wake, l.Look, func() {
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

func TestARestIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newRig(t), newLooker()
		r.sync(t)
		l.look[model.IPv4] = func() (Look, error) { return Look{Rest: 10 * time.Second}, nil }
		repairing(t, r, time.Second, nil, l.Look, func() {
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
		look := func(ctx context.Context, c *Changes) (Look, error) {
			if c.Family() == model.IPv6 {
				return Look{}, nil
			}
			err := r.v4.apply(ctx, c)
			c.Accept()
			return Look{Repaired: true}, err
		}
		repairing(t, r, 0, wake, look, func() {
			wake <- struct{}{}
			synctest.Wait()
		})
		assert.Len(t, r.v4.ports, 1)
		r.sync(t)
		assert.Empty(t, r.v4.told)
	})
}
