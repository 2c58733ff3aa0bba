package kubeproxy_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// costly is a sink whose Syncs take time. It measures how long changes wait for the end of the Sync that applies them.
type costly struct {
	sink.Recorder
	cost  func(sync int) time.Duration
	fails func(sync int) error

	mu      sync.Mutex
	made    int                  // changes
	written map[string]time.Time // changes, by the name of the Service, until they are applied
	wave    []string
	syncs   int
	spent   time.Duration
	longest time.Duration
	pauses  []time.Duration // before each Sync but the first
	end     time.Time
}

func takes(d time.Duration) *costly {
	return &costly{cost: func(int) time.Duration { return d }, written: map[string]time.Time{}}
}

func (c *costly) SetService(s *model.Service) {
	c.Recorder.SetService(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wave = append(c.wave, s.Name.Name)
}

func (c *costly) Sync(ctx context.Context) error {
	c.mu.Lock()
	n := c.syncs
	if c.syncs++; n > 0 {
		c.pauses = append(c.pauses, time.Since(c.end))
	}
	c.mu.Unlock()
	time.Sleep(c.cost(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.spent = time.Now(), c.spent+c.cost(n)
	if c.fails != nil {
		if err := c.fails(n); err != nil {
			c.FailNext(err)
			return c.Recorder.Sync(ctx)
		}
	}
	for _, name := range c.wave {
		if at, ok := c.written[name]; ok {
			c.longest = max(c.longest, time.Since(at))
			delete(c.written, name)
		}
	}
	c.wave = nil
	return c.Recorder.Sync(ctx)
}

// reset begins to measure anew.
func (c *costly) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncs, c.spent, c.longest, c.pauses = 0, 0, 0, nil
}

// change writes a new Service.
func (c *costly) change(src *manual) {
	c.mu.Lock()
	c.made++
	n := c.made
	s := service(fmt.Sprint("s", n), fmt.Sprintf("10.%d.%d.%d", 96+n>>16, n>>8&0xff, n&0xff))
	c.written[s.Name] = time.Now()
	c.mu.Unlock()
	src.Update(set(s)...)
}

// flood writes changes at equal intervals for a time.
func (c *costly) flood(src *manual, every, lasts time.Duration) {
	for range int(lasts / every) {
		c.change(src)
		time.Sleep(every)
	}
}

// TestTheTimeBetweenSyncsFollowsFromTheirCost: 1,000 changes in a second cause as many Syncs as their cost allows; no
// change waits for more than the previous Sync, the pause after it and its own Sync; and Syncs take a tenth of the time
// or, if they cost more than a ninth of a second, are a second apart (S43).
func TestTheTimeBetweenSyncsFollowsFromTheirCost(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		cost, interval, pause time.Duration
	}{
		{cost: 0, pause: 5 * ms},
		{cost: ms / 5, pause: 5 * ms},
		{cost: ms, pause: 9 * ms},
		{cost: 20 * ms, pause: 180 * ms},
		{cost: 150 * ms, pause: time.Second},
		{cost: 30 * time.Second, pause: time.Second},
		{cost: ms, interval: 300 * ms, pause: 300 * ms},
		{cost: 400 * ms, interval: 10 * ms, pause: 10 * ms},
		{cost: 20 * ms, interval: -1, pause: 0},
	} {
		t.Run(fmt.Sprintf("a Sync takes %v, MinInterval %v", c.cost, c.interval), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, s := newManual(), takes(c.cost)
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, MinInterval: c.interval, ResyncInterval: -1})
				src.Synced()
				time.Sleep(time.Hour)
				s.reset()
				s.flood(src, ms, time.Second)
				time.Sleep(time.Hour)
				require.NoError(t, stop())

				assert.Empty(t, s.written, "everything is applied")
				assert.LessOrEqual(t, s.longest, c.cost+c.pause+c.cost, "the bound of a change's wait")
				// The first change is applied at once; its Sync and each later one are followed by a pause.
				assert.LessOrEqual(t, s.syncs, 2+int(time.Second/(c.cost+c.pause)), "Syncs")
				assert.GreaterOrEqual(t, s.syncs, 1+min(1, int(time.Second/(c.cost+c.pause+ms))))
				if c.interval == 0 && c.pause < time.Second {
					// The first and the last Sync are not between two pauses.
					assert.LessOrEqual(t, s.spent, time.Second/10+2*c.cost, "a tenth of the time")
				}
				for _, pause := range s.pauses[1:] {
					assert.LessOrEqual(t, c.pause, pause)
					assert.LessOrEqual(t, pause, c.pause+ms, "there is always a change to apply")
				}
			})
		})
	}
}

// A change that comes while nothing else happens is applied at once, whatever the previous one cost.
func TestAChangeThatComesAloneDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, s := newManual(), takes(20*time.Millisecond)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1})
		src.Synced()
		for range 10 {
			time.Sleep(time.Second)
			s.change(src)
		}
		time.Sleep(time.Second)
		require.NoError(t, stop())
		assert.Equal(t, 20*time.Millisecond, s.longest, "the Sync itself")
	})
}

// In an endless flood of changes of Services, everything else has its turn as well: retries, resyncs, requests and
// changes of the Node; and what has failed is not lost.
func TestAFloodThatDoesNotEndStarvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, requests := newManual(), make(chan struct{}, 1)
		s := takes(2 * time.Millisecond)
		s.fails = func(sync int) error {
			if sync%2 == 1 {
				return fmt.Errorf("refused, for the %dth time", sync)
			}
			return nil
		}
		var lines atomic.Int32
		log := funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), log))
		result := make(chan error, 1)
		go func() {
			result <- kubeproxy.Run(ctx, kubeproxy.Options{Sink: s, ResyncInterval: 10 * time.Second,
				RetryInterval: 5 * time.Second, SyncRequests: requests,
				Feed: &kubeproxy.LocalFeed{Source: src, State: localstate.Options{NodeName: "node-1"}}})
		}()
		<-src.started
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		src.Update(set(node)...)
		src.Synced()
		synctest.Wait()
		counts := map[sink.Op]int{}
		for minute := range 2 {
			node := node.DeepCopy()
			node.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone-", minute)}
			src.Update(set(node)...)
			requests <- struct{}{}
			s.flood(src, 5*time.Millisecond, time.Minute)
			for _, w := range s.TakeWaves() {
				for _, call := range w.Calls {
					counts[call.Op]++
				}
			}
		}
		assert.Empty(t, requests)
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-result)
		assert.Equal(t, 3, counts[sink.OpSetNode])
		assert.Positive(t, counts[sink.OpResyncFailed], "retries")
		assert.GreaterOrEqual(t, counts[sink.OpForceResync], 2*60/10-1, "resyncs")
		assert.Empty(t, s.written, "nothing is lost")
		assert.LessOrEqual(t, int(lines.Load()), 2*60*3, "log lines: a few a second at most")
	})
}

// A hundred changes that are written one after the other, as in a rolling update: those that have arrived are applied
// by the first Sync, all others by the next one.
func TestABurstTakesTwoSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, s := newManual(), takes(2*time.Millisecond)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1})
		src.Synced()
		time.Sleep(time.Minute)
		s.reset()
		s.flood(src, 150*time.Microsecond, 15*time.Millisecond)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		assert.Empty(t, s.written)
		assert.Equal(t, 2, s.syncs)
		assert.LessOrEqual(t, s.longest, (2+18+2)*time.Millisecond)
	})
}

// Families are applied one after the other, so the pause depends on the cost of both: a fast family waits for the Sync
// of the slow one, the pause after it, and the next Sync.
func TestTheCostIsThatOfAllFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, fast, slow := newManual(), takes(time.Millisecond), takes(40*time.Millisecond)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(fast, slow), ResyncInterval: -1})
		src.Synced()
		time.Sleep(time.Hour)
		fast.reset()
		fast.flood(src, time.Millisecond, 10*time.Second)
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		assert.LessOrEqual(t, fast.longest, (41+9*41+41)*time.Millisecond)
		assert.InDelta(t, 10*time.Second/(41+9*41)/time.Millisecond, fast.syncs, 2)
	})
}

// When Applied is called, the Feed already knows the length of the pause that follows.
func TestAFeedLearnsThePauseThatFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, s := newManual(), takes(0)
		s.cost = func(sync int) time.Duration { return time.Duration(sync) * 10 * time.Millisecond }
		feed := &pausing{LocalFeed: local(src)}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: s, ResyncInterval: -1}) }()
		<-src.started
		src.Synced()
		for range 3 {
			time.Sleep(time.Minute)
			s.change(src)
		}
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-result)
		const ms = time.Millisecond
		assert.Equal(t, []time.Duration{5 * ms, 90 * ms, 180 * ms, 270 * ms}, feed.pauses)
	})
}

type pausing struct {
	*kubeproxy.LocalFeed
	handler kubeproxy.FeedHandler
	pauses  []time.Duration
}

func (p *pausing) Run(ctx context.Context, h kubeproxy.FeedHandler) error {
	p.handler = h
	return p.LocalFeed.Run(ctx, h)
}

func (p *pausing) Applied(error) {
	p.pauses = append(p.pauses, p.handler.(interface{ MinInterval() time.Duration }).MinInterval())
}

// read is a sink whose dataplane another program reads: it starts at a given time, and needs a given time without a
// Sync.
type read struct {
	*costly
	from  time.Time
	takes time.Duration
	asks  time.Duration // how long a call of Yield takes
	asked int
}

func (r *read) Yield() time.Duration {
	r.mu.Lock()
	r.asked++
	asks := r.asks
	r.mu.Unlock()
	time.Sleep(asks)
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Before(r.from) || now.Sub(r.end) >= r.takes {
		return 0
	}
	return 10 * time.Millisecond
}

// did returns how many Syncs there were, and how often it was asked.
func (r *read) did() (syncs, asked int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs, r.asked
}

// begin makes another program read, from now on, for that long.
func (r *read) begin(takes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks, r.asked, r.from, r.takes = 0, 0, time.Now(), takes
}

// Programs that read the dataplane get the time that they need, even during endless changes (S43).
func TestOthersCanReadTheDataplaneBesideAFlood(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		gap   time.Duration // the longest between Syncs
		share float64       // of the time that is waited, at most
	}{
		{"a listing that takes a second", time.Second, time.Second, 0.11},
		{"one that takes long", 15 * time.Second, 15 * time.Second, 0.28},
		{"one that never ends", time.Hour, 45 * time.Second, 0.15},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each keeps one processor busy
			synctest.Test(t, func(t *testing.T) {
				src, s := newManual(), &read{costly: takes(time.Millisecond), takes: c.takes}
				s.from = time.Now().Add(time.Hour)
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1})
				src.Synced()
				time.Sleep(time.Minute)
				for range 10 {
					s.change(src)
					time.Sleep(50 * time.Second)
				}
				_, asked := s.did()
				assert.Zero(t, asked, "changes that come alone wait for nobody")
				s.reset()
				s.begin(c.takes)
				s.flood(src, 10*time.Millisecond, 10*time.Minute)
				time.Sleep(time.Hour)
				require.NoError(t, stop())
				assert.Empty(t, s.written)
				var longest, waited time.Duration
				for _, pause := range s.pauses[:len(s.pauses)-1] {
					if longest = max(longest, pause); pause > 20*time.Millisecond {
						waited += pause
					}
				}
				assert.InDelta(t, c.gap.Seconds(), longest.Seconds(), 0.03)
				assert.LessOrEqual(t, waited.Seconds(), c.share*600)
			})
		})
	}
}

// Asking whether another program reads counts as work, and the sink is not asked again before the time that it returned
// is over, whatever else happens meanwhile.
func TestAskingWhetherSomebodyReadsIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, requests := newManual(), make(chan struct{})
		s := &read{costly: takes(time.Millisecond), asks: 10 * time.Millisecond}
		s.from = time.Now().Add(time.Hour)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: s, ResyncInterval: -1, SyncRequests: requests})
		src.Synced()
		time.Sleep(time.Minute)
		s.change(src)
		time.Sleep(time.Second)
		s.reset()
		s.flood(src, time.Millisecond, 10*time.Second)
		syncs, _ := s.did()
		assert.LessOrEqual(t, syncs, 1+10*1000/110, "a Sync takes 11 ms with the question before it")

		time.Sleep(time.Second)
		s.begin(5 * time.Second)
		s.change(src)
		for range 10_000 {
			requests <- struct{}{}
		}
		time.Sleep(time.Minute)
		_, asked := s.did()
		assert.LessOrEqual(t, asked, 2+5*1000/10, "each 10 ms")
		require.NoError(t, stop())
		assert.Empty(t, s.written)
	})
}
