package kubeproxy_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// reread is a sink whose dataplane another program lists three times, beginning again whenever a Sync interrupts.
type reread struct {
	*costly
	takes time.Duration // a listing without a Sync

	began  time.Time // the present listing; zero: there is none
	again  time.Time // its last attempt
	took   []time.Duration
	pauses bool // between two listings
}

// look records whether the listing is complete.
func (l *reread) look() {
	if l.began.IsZero() {
		return
	}
	if l.end.After(l.again) {
		l.again = l.end
	}
	if ends := l.again.Add(l.takes); !time.Now().Before(ends) {
		l.took, l.pauses = append(l.took, ends.Sub(l.began)), true
		l.began, l.again = ends, ends
		if len(l.took) == 3 {
			l.began = time.Time{}
		}
	}
}

func (l *reread) Yield() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	if l.pauses || l.began.IsZero() {
		l.pauses = false
		return 0
	}
	return 10 * time.Millisecond
}

// TestAListingIsDoneWithinAMinute: this holds for the second and the third one, too, however often something changes
// (S43). One that takes longer than 20 s has two minutes.
func TestAListingIsDoneWithinAMinute(t *testing.T) {
	for _, c := range []struct{ takes, every, most time.Duration }{
		{7600 * time.Millisecond, 10 * time.Millisecond, time.Minute},
		{12 * time.Second, 100 * time.Millisecond, time.Minute},
		{15 * time.Second, 100 * time.Millisecond, time.Minute},
		{15 * time.Second, 11 * time.Second, time.Minute},
		{20 * time.Second, 19 * time.Second, time.Minute},
		{21 * time.Second, 19 * time.Second, 2 * time.Minute},
		{40 * time.Second, 100 * time.Millisecond, 2 * time.Minute},
	} {
		t.Run(fmt.Sprintf("of %v beside a change each %v", c.takes, c.every), func(t *testing.T) {
			t.Parallel() // each keeps one processor busy
			synctest.Test(t, func(t *testing.T) {
				src, s := newManual(), &reread{costly: takes(time.Millisecond), takes: c.takes}
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1})
				src.Synced()
				s.flood(src, c.every, time.Minute)
				s.mu.Lock()
				s.began, s.again = time.Now(), time.Now()
				s.mu.Unlock()
				s.flood(src, c.every, 10*time.Minute)
				require.NoError(t, stop())
				require.Len(t, s.took, 3)
				for _, took := range s.took {
					assert.LessOrEqual(t, took, c.most+time.Second)
				}
			})
		})
	}
}

// A run that waits for an endless listing stays healthy, whatever the retry interval: health expects a Sync within
// twice that, and a retry does not wait at all.
func TestAListingHoldsUpNeitherHealthNorRetries(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		t.Run(fmt.Sprint(interval), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				src, s := newManual(), &read{costly: takes(time.Millisecond), takes: time.Hour}
				s.from = time.Now().Add(time.Hour)
				var fail atomic.Bool
				s.fails = func(int) error {
					if fail.CompareAndSwap(true, false) {
						return errors.New("refused")
					}
					return nil
				}
				healthy := health.New(2 * interval)
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1, RetryInterval: interval,
					Health: healthy})
				src.Synced()
				time.Sleep(time.Minute)
				s.begin(time.Hour)
				for range 5 * 60 * 20 {
					s.change(src)
					time.Sleep(50 * time.Millisecond)
					require.True(t, healthy.Healthy())
				}
				time.Sleep(10 * time.Minute)
				fail.Store(true)
				s.change(src)
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, stop())
				assert.Empty(t, s.written, "it was applied by the first retry, after 100 ms")
			})
		})
	}
}

// Changes that make no difference are paced as well, and do not make the next change wait.
func TestChangesThatMakeNoDifferenceArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, s := newManual(), &read{costly: takes(time.Millisecond), asks: time.Millisecond}
		s.from = time.Now().Add(time.Hour)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1})
		src.Synced()
		time.Sleep(time.Minute)
		s.change(src)
		time.Sleep(time.Second)
		s.reset()
		_, before := s.did()
		svc := service("gone", "10.200.0.1")
		for range 5000 {
			src.Update(set(svc)...)
			src.Update(watch.Change{Object: svc, Deleted: true})
			time.Sleep(time.Millisecond)
		}
		_, asked := s.did()
		assert.LessOrEqual(t, asked-before, 5000/10+1, "a tenth of the time")
		time.Sleep(20 * time.Millisecond)
		s.change(src)
		time.Sleep(20 * time.Millisecond)
		s.change(src)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		assert.Empty(t, s.written)
		assert.LessOrEqual(t, s.longest, 25*time.Millisecond, "a question, a pause of nine times the last one, and a Sync")
	})
}
