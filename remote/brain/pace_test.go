package brain

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// pacedRun is what a server does that is paced, with revisions that take a time to work out, and clients that each cost
// some processor time.
type pacedRun struct {
	pace      pace
	used      time.Duration // of the processor
	work      time.Duration
	clients   int
	each      time.Duration // of the processor, for a client
	beside    time.Duration // of the processor, for something else beside the next revision
	revisions []time.Time
}

func newPacedRun(work time.Duration, clients int, each time.Duration) *pacedRun {
	r := &pacedRun{work: work, clients: clients, each: each}
	r.pace.each = usualPerMessage
	r.pace.cpu = func() (time.Duration, bool) { return r.used, true }
	return r
}

// publish makes a revision, and returns when the next one may begin.
func (r *pacedRun) publish() {
	now := time.Now()
	r.revisions = append(r.revisions, now)
	r.pace.begin(now)
	time.Sleep(r.work)
	r.pace.messages.sent.Add(int64(r.clients))
	r.used += r.work + time.Duration(r.clients)*r.each + r.beside
	r.beside = 0
	r.pace.end(time.Now(), r.work)
	for wait := r.pace.wait(time.Now()); wait > 0; wait = r.pace.wait(time.Now()) {
		time.Sleep(wait)
	}
}

// longest is the longest time from the beginning of one revision to that of the next.
func (r *pacedRun) longest() (most time.Duration) {
	for i := range r.revisions[1:] {
		most = max(most, r.revisions[i+1].Sub(r.revisions[i]))
	}
	return most
}

// Under constant change, revisions are as frequent as half of one core allows, with the limits of the pause.
func TestRevisionsTakeHalfOfACore(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	for _, c := range []struct {
		name    string
		work    time.Duration
		clients int
		each    time.Duration
		period  time.Duration
	}{
		{"a revision without clients", 100 * us, 0, 0, minPause + 100*us},
		{"one node", ms, 1, 80 * us, minPause + ms},
		{"a hundred nodes", ms, 100, 80 * us, 18 * ms},
		{"a thousand nodes", ms, 1000, 80 * us, 162 * ms},
		{"five thousand nodes", 2 * ms, 5000, 80 * us, 804 * ms},
		{"fifty thousand nodes", 2 * ms, 50_000, 80 * us, maxPause + 2*ms},
		{"a fast machine", ms, 5000, 30 * us, 302 * ms},
		{"a slow machine", ms, 1000, 160 * us, 322 * ms},
		{"what else the process does is not the cost of messages", ms, 100, 10 * ms, 42 * ms},
		{"messages are not taken for free", ms, 5000, 0, 202 * ms},
		{"revisions that are expensive themselves", 100 * ms, 100, 80 * us, 216 * ms},
		{"revisions that take 30 s", 30 * time.Second, 100, 80 * us, 30*time.Second + maxPause},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPacedRun(c.work, c.clients, c.each)
				for range 60 { // until it is known what a message costs
					r.publish()
				}
				r.revisions = nil
				begin, used := time.Now(), r.used
				for range 11 {
					r.publish()
				}
				assert.InEpsilon(t, c.period, r.longest(), 0.03)
				if took := time.Since(begin); c.period < maxPause && c.each >= minPerMessage && c.each <= maxPerMessage {
					assert.LessOrEqual(t, r.used-used, took*52/100)
				}
			})
		})
	}
}

// A garbage collection during one revision does not delay the next one.
func TestOneExpensiveRevisionIsNotTheCostOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPacedRun(time.Millisecond, 100, 80*time.Microsecond)
		for i := range 300 {
			if i%50 == 0 {
				r.beside = 200 * time.Millisecond
			}
			r.publish()
		}
		assert.Less(t, r.longest(), 25*time.Millisecond)
	})
}

// Messages that follow a revision, after acknowledgements, count as well.
func TestMessagesAfterARevisionCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPacedRun(0, 0, 0)
		r.pace.begin(time.Now())
		r.pace.end(time.Now(), 0)
		wait := r.pace.wait(time.Now())
		assert.Equal(t, minPause, wait)
		time.Sleep(wait)
		r.pace.messages.sent.Add(500)
		assert.Equal(t, 2*500*usualPerMessage-wait, r.pace.wait(time.Now()))
	})
}

// Clients that apply changes once a second get one message a second, however many revisions there are. So they do not
// slow down the revisions, however many such clients there are.
func TestMessagesThatWereHeldBackHoldUpNobody(t *testing.T) {
	for _, c := range []struct {
		sent, held int64
		period     time.Duration
	}{
		{0, 0, 2 * time.Millisecond},
		{100, 100, 22 * time.Millisecond},
		{5000, 5000, heldPeriod},
		{50_000, 49_990, heldPeriod},
		{5000, 4000, 202 * time.Millisecond},
		{5000, 0, 1002 * time.Millisecond},
		{10, 20, 4 * time.Millisecond}, // counted, and not sent yet
	} {
		cost := revisionCost{work: time.Millisecond, each: usualPerMessage, messages: messageTotal{c.sent, c.held}}
		assert.Equal(t, c.period, cost.period(), c)
	}
}

// Tests and benchmarks set a pause of their own.
func TestAFixedPauseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fixed := range []time.Duration{-1, 100 * time.Millisecond} {
			r := newPacedRun(10*time.Millisecond, 100_000, time.Second)
			r.pace.fixed = fixed
			r.publish()
			begin := time.Now()
			r.publish()
			assert.Equal(t, r.work+max(fixed, 0), time.Since(begin))
		}
	})
}

// While pods are replaced all the time, nodes that apply a change in a millisecond have it as soon as the brain's half
// of a core allows, and the brain uses no more than that. The first change is sent at once, and nodes that never
// acknowledge do not delay others. The processor is simulated, everything else of the brain is real. With
// KPL_SIMULATE=10000 there are as many nodes as well.
func TestChangesArriveAsSoonAsHalfOfACoreAllows(t *testing.T) {
	type paced struct {
		nodes, stalled, rate int
		most                 time.Duration // from a change to the last node
	}
	cases := []paced{
		{1, 0, 100, 20 * time.Millisecond},
		{100, 0, 100, 50 * time.Millisecond},
		{100, 10, 100, 50 * time.Millisecond},
		{100, 0, 1000, 50 * time.Millisecond},
		{1000, 0, 100, 250 * time.Millisecond},
	}
	if os.Getenv("KPL_SIMULATE") != "" {
		nodes, _ := simSize(t)
		cases = append(cases, paced{nodes, nodes / 10, 100, maxPause + minPause + 20*time.Millisecond})
	}
	for _, c := range cases {
		name := fmt.Sprintf("%d nodes, %d of them stalled, %d changes a second", c.nodes, c.stalled, c.rate)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulation(t, 1, c.nodes, 1, 0)
				defer s.end()
				s.brains[0].stop()
				s.brains[0].lag = 0
				s.brains[0].start()
				for _, n := range s.nodes {
					n.takes(time.Millisecond)
					n.start()
				}
				s.settle()
				s.probes.reset()
				for _, n := range s.nodes {
					n.mu.Lock()
					n.probe = 0
					n.mu.Unlock()
				}
				s.churn(1, time.Second, time.Second)
				assert.Equal(t, simTrip+time.Millisecond, s.probes.slowest(), "the first change waits for nothing")

				for _, n := range s.nodes[:c.stalled] {
					n.takes(time.Hour)
				}
				server := s.brains[0].server.Load()
				revision := server.lastRevision()
				sent := server.pace.messages.total().sent
				const seconds = 5
				s.churn(c.rate, seconds*time.Second, 5*time.Millisecond)
				revisions := int(server.lastRevision() - revision)
				cost := time.Duration(server.pace.messages.total().sent-sent) * simPerMessage
				for _, n := range s.nodes[:c.stalled] {
					n.lose()
				}
				s.settle()

				all := time.Duration(c.nodes-c.stalled) * simPerMessage
				period := max(min(perRevision*all, maxPause), minPause)
				allowed := all * (seconds * time.Second / period) // half of a core, up to maxPause
				assert.LessOrEqual(t, cost, allowed+2*all)
				if period > time.Second/time.Duration(c.rate) {
					assert.Greater(t, cost, allowed*8/10, "it does not wait for longer than it has to")
				} else {
					assert.InEpsilon(t, seconds*c.rate, revisions, 0.1, "there is one for each change")
				}
				assert.LessOrEqual(t, s.probes.slowest(), c.most)
				t.Logf("%d revisions, %v of processor time, slowest %v; %v", revisions, cost, s.probes.slowest(), &s.probes)
			})
		})
	}
}

func (s *Server) lastRevision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}
