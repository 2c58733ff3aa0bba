package brain

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/testdial"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// simulation is a fleet with several brains in one process, in virtual time.
//
// Real: the brains with clients, classes, history, limits and jitter; what they encode; what nodes decode and compare;
// and a few whole nodes with a Feed, gRPC and kubeproxy.Run. Simulated: the API server (a list of changes), the network
// (no gRPC, no TLS, nothing is lost or slow; a cut ends a stream at once) and the other nodes: lightNodes with
// the timing of a Feed. Computing takes no virtual time, so latencies are those of the protocol; but brains pace
// themselves as if each message cost simPerMessage.
//
// What happens, where and when follows from the seed; the brains' own jitter and the order of goroutines do not.
type simulation struct {
	t         *testing.T
	cluster   *simCluster
	brains    []*simBrain
	nodes     []*simNode
	feeds     []simFeed
	forgetful bool // nodes do not say how new their state is
	states    *lightStates
	frames    atomic.Pointer[simFrame]

	randomMu sync.Mutex
	rand     *rand.Rand

	over                     atomic.Bool
	probes                   simProbes
	laters, behind, compares atomic.Int64
	wentBack                 atomic.Int64
	attempts                 perSecond
	problemMu                sync.Mutex
	problems                 []string
}

// simFeed is a real node.
type simFeed struct {
	node string
	rec  *sink.Recorder
}

func (s *simulation) roll(n int) int {
	s.randomMu.Lock()
	defer s.randomMu.Unlock()
	return s.rand.IntN(n)
}

func (s *simulation) problem(format string, args ...any) {
	s.problemMu.Lock()
	defer s.problemMu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// newSimulation starts brains, and nodes that do not connect yet.
func newSimulation(t *testing.T, seed uint64, nodes, brains, feeds int) *simulation {
	s := &simulation{t: t, cluster: newSimCluster(nodes), rand: rand.New(rand.NewPCG(seed, 0)),
		states: newLightStates()}
	for i := range brains {
		b := &simBrain{sim: s, index: i, lag: time.Duration(s.roll(100)) * time.Millisecond} // revisions begin anywhere
		s.brains = append(s.brains, b)
		b.start()
	}
	for i := range nodes {
		n := &simNode{sim: s, zone: i % len(simZones), light: lightNode{name: simNodeName(i), states: s.states},
			sync: time.Duration(1+s.roll(20)) * time.Millisecond, order: s.rand.Perm(brains), any: true}
		if i%10 == 0 {
			n.sync *= 10 // it applies a change no more than once a second, or little more
		}
		n.silence = time.AfterFunc(time.Hour, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.leave()
			n.retry(context.DeadlineExceeded)
		})
		n.silence.Stop()
		s.nodes = append(s.nodes, n)
	}
	for i := range feeds {
		s.feeds = append(s.feeds, s.startFeed(simNodeName(i*nodes/feeds)))
	}
	return s
}

// startFeed runs a real node, which connects to the brains through memory.
func (s *simulation) startFeed(node string) simFeed {
	targets := make([]string, len(s.brains))
	for i := range targets {
		targets[i] = fmt.Sprintf("192.0.2.%d:1", 1+i)
	}
	ctx := testdial.With(quiet(s.t), func(ctx context.Context, target string) (net.Conn, error) {
		ln := s.brains[slices.Index(targets, target)].listener.Load()
		if ln == nil {
			return nil, context.Canceled
		}
		return ln.DialContext(ctx)
	})
	ctx, cancel := context.WithCancel(ctx)
	feed, err := remote.NewFeed(remote.Options{Targets: targets, Insecure: true,
		State: localstate.Options{NodeName: node}})
	require.NoError(s.t, err)
	rec := &sink.Recorder{}
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(s.t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec})) })
	s.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return simFeed{node, rec}
}

// end ends all that runs.
func (s *simulation) end() {
	s.over.Store(true)
	for _, n := range s.nodes {
		n.lose()
	}
	for _, b := range s.brains {
		b.stop()
	}
}

// churn replaces perSecond pods a second for a duration d. All that is due is done in each tick.
func (s *simulation) churn(perSecond int, d, tick time.Duration) {
	for left, due := d, 0.0; left > 0; left -= tick {
		due += float64(perSecond) * tick.Seconds()
		var pods []int
		for ; due >= 1; due-- {
			pods = append(pods, s.roll(s.cluster.services*s.cluster.endpoints))
		}
		if len(pods) > 0 {
			s.probes.sent(s.cluster.replace(pods...))
		}
		time.Sleep(tick)
	}
}

// settle waits until all nodes that are there have everything.
func (s *simulation) settle() {
	want := s.cluster.replace(0) // so that a lagging brain can be seen to be up to date
	for range 6000 {
		missing := 0
		for _, n := range s.nodes {
			n.mu.Lock()
			if !n.down && (n.clock < want || n.stream == nil) {
				missing++
			}
			n.mu.Unlock()
		}
		if missing == 0 {
			time.Sleep(2 * time.Second) // the last acknowledgements
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.Fail(s.t, "nodes do not get everything", s.loads())
}

// verify holds every node's state against its brain's, and those of real nodes against what they would work out.
func (s *simulation) verify() {
	synctest.Wait()
	require.Empty(s.t, s.problems)
	served := 0
	for _, b := range s.brains {
		server := b.server.Load()
		if server == nil {
			continue
		}
		server.mu.Lock()
		of := map[*simStream]*client{}
		for _, clients := range server.byNode {
			for c := range clients {
				if stream, ok := c.stream.(*simStream); ok {
					of[stream] = c
				}
			}
		}
		server.mu.Unlock()
		for stream, c := range of {
			served++
			c.mu.Lock()
			has := c.has
			c.mu.Unlock()
			n := stream.node
			n.mu.Lock()
			if has.version == nil || !proto.Equal(has.digest(), n.light.digest()) || n.stream != stream {
				s.problem("%v does not have what brain %d says", n, b.index)
			}
			n.mu.Unlock()
		}
	}
	up := 0
	for _, n := range s.nodes {
		if !n.down {
			up++
		}
	}
	require.Equal(s.t, up, served)
	require.Empty(s.t, s.problems)
	for _, f := range s.feeds {
		require.Empty(s.t, difference(s.cluster.want(s.t, f.node), f.rec), f.node)
		require.Empty(s.t, f.rec.Violations())
	}
}

// loads are the numbers of nodes of the brains.
func (s *simulation) loads() []int {
	loads := make([]int, len(s.brains))
	for _, n := range s.nodes {
		n.mu.Lock()
		if n.stream != nil {
			loads[n.stream.brain.index]++
		}
		n.mu.Unlock()
	}
	return loads
}

// scenario runs a part of a simulation, and reports what it took.
func (s *simulation) scenario(name string, run func()) {
	for _, b := range s.brains {
		b.sent.Store(0)
		b.received.Store(0)
		b.attempts.reset()
		b.fulls.reset()
	}
	s.attempts.reset()
	s.probes.reset()
	for _, n := range s.nodes {
		n.mu.Lock()
		n.probe = 0
		n.mu.Unlock()
	}
	s.laters.Store(0)
	s.behind.Store(0)
	s.compares.Store(0)
	begin := time.Now()
	cpuBefore, _ := processTime()
	run()
	s.settle()
	cpu, _ := processTime()
	cpu -= cpuBefore
	s.verify()
	var sent, received int64
	attempts, fulls := 0, 0
	for _, b := range s.brains {
		sent, received = sent+b.sent.Load(), received+b.received.Load()
		attempts, fulls = max(attempts, b.attempts.peak()), max(fulls, b.fulls.peak())
	}
	s.t.Logf("%s: %v, CPU of all %.1f s, %.1f MB to nodes, %.1f MB from them; peak connections %d/s, of one brain %d/s; "+
		"peak first states of a brain %d/s; come later %d, behind %d, compared %d; %v; loads %v", name,
		time.Since(begin).Round(time.Second), cpu.Seconds(), float64(sent)/1e6, float64(received)/1e6, s.attempts.peak(),
		attempts, fulls, s.laters.Load(), s.behind.Load(), s.compares.Load(), s.probes.String(), s.loads())
}

// simSize is how many nodes and which seed: 300 and 1, or KPL_SIMULATE=50000 and KPL_SEED.
func simSize(t *testing.T) (nodes int, seed uint64) {
	nodes, seed = 300, 1
	if text := os.Getenv("KPL_SIMULATE"); text != "" {
		var err error
		nodes, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	if text := os.Getenv("KPL_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	return nodes, seed
}

// TestSimulatedFleet is the life of a large fleet, see simulation. With KPL_SIMULATE=50000 it has as many nodes, and
// takes minutes; -v shows the figures.
func TestSimulatedFleet(t *testing.T) {
	nodes, seed := simSize(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, seed, nodes, 5, 6)
		defer s.end()
		rate := nodes/1000 + 1 // of pods that are replaced all the time
		const tick = 20 * time.Millisecond
		s.scenario("first states for all at once", func() {
			for _, n := range s.nodes {
				n.start()
			}
		})
		s.scenario("rollout", func() { s.churn(nodes/100, 40*time.Second, tick) })
		assert.Len(t, simZones, s.brains[0].server.Load().numClasses()-1, "hints have named zones, and not all the time")
		s.scenario("all reconnect at once, under churn", func() {
			s.churn(rate, 5*time.Second, tick)
			for _, n := range s.nodes {
				n.mu.Lock()
				n.leave()
				n.retry(context.Canceled)
				n.mu.Unlock()
			}
			s.churn(rate, 10*time.Second, tick)
		})
		s.scenario("a zone is lost", func() { s.loseZone(0) })
		s.scenario("the zone comes back", func() { s.returnZone(0) })
		s.brains[0].lag = 3 * time.Second
		s.scenario("rolling restart under churn, one brain lags", func() {
			var churn sync.WaitGroup
			churn.Go(func() { s.churn(rate, time.Duration(len(s.brains))*32*time.Second, 4*time.Second) })
			for _, b := range s.brains {
				b.server.Load().Drain(t.Context(), 20*time.Second)
				b.stop()
				time.Sleep(10 * time.Second)
				b.start()
			}
			churn.Wait()
		})
		if nodes <= 10_000 { // ten million heartbeats say no more
			s.scenario("46 quiet minutes", func() { time.Sleep(46 * time.Minute) })
			for i, load := range s.loads() {
				assert.Greater(t, load, nodes/len(s.brains)/3, "brain %d", i)
			}
		}
		assert.Zero(t, s.wentBack.Load(), "nodes that went back")
	})
}

// loseZone ends the nodes and brains of a zone, which report nothing; 40 seconds later its pods are gone, too.
func (s *simulation) loseZone(zone int) {
	for _, b := range s.brains {
		if b.index%len(simZones) == zone {
			b.vanish()
		}
	}
	for _, n := range s.nodes {
		if n.zone == zone {
			n.lose()
		}
	}
	s.churn(1, 40*time.Second, 4*time.Second)
	s.probes.sent(s.cluster.setZone(zone, true))
	s.churn(1, 20*time.Second, 4*time.Second)
}

// returnZone starts them again.
func (s *simulation) returnZone(zone int) {
	for _, b := range s.brains {
		if b.index%len(simZones) == zone {
			b.start()
		}
	}
	for _, n := range s.nodes {
		if n.zone == zone {
			n.start()
		}
	}
	s.probes.sent(s.cluster.setZone(zone, false))
	s.churn(1, 20*time.Second, 4*time.Second)
}

// Nodes that do not say how new their state is get an older one from a brain that lags: the simulation notices that.
func TestASimulationSeesNodesGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, forgetful := range []bool{false, true} {
			s := newSimulation(t, 1, 100, 2, 0)
			s.brains[1].stop()
			s.brains[1].lag = 2 * s.brains[0].server.Load().opts.limits.maxCatchUp
			s.brains[1].start()
			s.forgetful = forgetful
			for _, n := range s.nodes {
				n.start()
			}
			s.churn(10, 10*time.Second, 100*time.Millisecond)
			for _, n := range s.nodes {
				n.mu.Lock()
				n.leave()
				n.retry(context.Canceled)
				n.mu.Unlock()
			}
			s.churn(10, 5*time.Second, 100*time.Millisecond)
			s.settle()
			assert.Equal(t, forgetful, s.wentBack.Load() > 0, s.wentBack.Load())
			assert.Equal(t, forgetful, s.behind.Load() == 0)
			s.end()
		}
	})
}
