package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Random applies n random states in turn, and compares what happens to random traffic with what the oracle says. Now
// and then the backend is restarted, a Sync is cancelled, or a fresh backend begins with another configuration. The
// seed determines everything.
//
// The first failure ends the test, after the events that led to it have been reduced to as few as possible. The message
// has the seed, these events, the flows, and the ruleset. Random needs what [Test] needs.
func Random(t *testing.T, f Factory, seed uint64, n int) {
	t.Helper()
	testSession(t, f, seed).runRandom(t, seed, n)
}

// runRandom runs the random test, and reports its result.
func (s *session) runRandom(t *testing.T, seed uint64, n int) {
	t.Helper()
	if err := s.random(t.Context(), seed, n); err != nil {
		t.Errorf("random test with seed %d and %d states\n\n%v", seed, n, err)
	}
	s.logWaived(t)
}

// random runs the random test.
func (s *session) random(ctx context.Context, seed uint64, n int) error {
	g := newGenerator(seed, s.factory)
	for done := 0; done < n; {
		r := &randomRun{session: s, script: script{setup: g.setup()}, effort: effort{visits: 3, copies: 1}}
		var services []service
		for range min(episodeLength, n-done) {
			done++
			before := services
			st := g.next(services)
			services = st.services
			r.script.steps = append(r.script.steps, st)
			if err := ctx.Err(); err != nil {
				return err
			}
			flows := g.trafficTo(services, before, flowsPerWave)
			if err := r.wave(ctx, st, flows); err != nil {
				return fmt.Errorf("state %d: %w", done, r.shrunk(ctx, flows, err))
			}
		}
		if err := s.cleanup(ctx); err != nil {
			return err
		}
	}
	return nil
}

// randomRun is one episode: a fresh backend and what it goes through.
type randomRun struct {
	*session
	script script
	// contacts are the endpoints that clients of services with affinity were sent to.
	contacts map[contactKey][]contact
	effort   effort
}

// effort is how often traffic is tried in each state. To find a fault, a little traffic to each of many services is
// enough. To find it again there may be one service left: if that has one right and one wrong endpoint, n tries all
// pick the right one with a probability of 1 in 2 to the power of n.
type effort struct {
	// visits is how many connections a client of a service with affinity makes, one after the other.
	visits int
	// copies is the maximum number of tries of each other flow.
	copies int
}

type contactKey struct {
	port    model.PortName
	source  netip.Addr
	address netip.AddrPort // only for a backend that waives sharedAffinityCase
}

type contact struct {
	endpoint netip.AddrPort
	at       time.Time
}

// flowsFailed is an error with the traffic that went wrong.
type flowsFailed struct {
	failures
	traffic []traffic
}

// add adds what is wrong with traffic.
func (e *flowsFailed) add(wrong error, tr traffic) {
	e.failures.add(wrong)
	e.traffic = append(e.traffic, tr)
}

func (e *flowsFailed) Error() string { return e.failures.err().Error() }

// wave applies a state, with its event, and tries traffic.
func (r *randomRun) wave(ctx context.Context, st scriptStep, flows []traffic) error {
	if r.sink == nil {
		if err := r.start(ctx, r.script.setup); err != nil {
			return err
		}
		r.contacts = map[contactKey][]contact{}
	} else if st.event == restarted {
		if err := r.restart(ctx); err != nil {
			return err
		}
		r.contacts = map[contactKey][]contact{} // No backend promises that affinity survives a restart.
	}
	before := r.told
	if err := r.describe(st.services...); err != nil {
		return err
	}
	r.forgetContacts(before)
	if st.event == cancelled {
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		_ = r.sync(stopped)
	}
	if st.event == cancelled || st.event == resynced {
		if err := r.forceResync(); err != nil {
			return err
		}
	}
	if err := r.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return r.tryTraffic(ctx, flows)
}

// forgetContacts drops contacts that a new state ends: the port or its affinity has changed, or the endpoint has left
// one of its sets.
func (r *randomRun) forgetContacts(last state) {
	for key, list := range r.contacts {
		before, after := last.services[key.port.Service], r.told.services[key.port.Service]
		if before == nil || after == nil || before.SessionAffinityTimeout != after.SessionAffinityTimeout {
			delete(r.contacts, key)
			continue
		}
		r.contacts[key] = slices.DeleteFunc(list, func(c contact) bool {
			k := model.EndpointKey{Port: key.port, Target: c.endpoint}
			old, now := last.endpoints[k], r.told.endpoints[k]
			return old == nil || now == nil || !now.Sets.Has(old.Sets)
		})
	}
}

// tryTraffic tries flows in the applied state, all concurrently except for those with affinity, where each depends on
// the ones before.
func (r *randomRun) tryTraffic(ctx context.Context, flows []traffic) error {
	failed := &flowsFailed{}
	var free []expectation
	var freeTraffic []traffic
	for _, tr := range flows {
		st := step{services: []service{*tr.as}, traffic: []traffic{tr}}
		expanded, err := st.flows(r.env.Families, r.protocols())
		if err != nil {
			return err
		}
		for _, e := range expanded {
			x, err := r.expect([]network.Attempt{e.Attempt})
			if err != nil {
				return err
			}
			if x[0].out.AffinityTimeout == 0 {
				free, freeTraffic = append(free, x[0]), append(freeTraffic, tr)
			} else if wrong := r.visitOften(x[0]); wrong != nil {
				failed.add(wrong, tr)
			}
		}
	}
	reported := make([]bool, len(free))
	// Each once, and the other copies only if that was right, because failures are often silent and take long.
	for _, copies := range []int{1, r.effort.copies - 1} {
		for i, wrong := range r.judge(ctx, slices.Repeat(free, copies)) {
			if i %= len(free); wrong != nil && !reported[i] {
				reported[i] = true
				failed.add(wrong, freeTraffic[i])
			}
		}
		if failed.err() != nil {
			return failed
		}
	}
	return nil
}

// visitOften makes a few connections of one client to a service with affinity, one after the other.
func (r *randomRun) visitOften(x expectation) error {
	out, key := x.out, contactKey{port: x.out.Port, source: x.Source}
	if r.factory.waives(sharedAffinityCase) {
		key.address = x.Destination
	}
	for range r.effort.visits {
		var contacts []oracle.Contact
		for _, c := range r.contacts[key] {
			contacts = append(contacts, oracle.Contact{Endpoint: c.endpoint, Ago: time.Since(c.at)})
		}
		x.out = out.After(contacts...)
		x.DropIsRight = x.allowsSilence()
		seen := r.try(x.Attempt, r.patience.Patience)
		if err := x.check(seen); err != nil {
			return err
		}
		if seen.Verdict == oracle.Deliver {
			r.contacts[key] = append(r.contacts[key], contact{seen.Endpoint, time.Now()})
		}
	}
	return nil
}

// notation explains what a script looks like.
const notation = `(Each line is a service: its name; in round brackets the slot, which its addresses and node ports are counted from, and
what is set; its ports, as name, number/protocol->port of the endpoints; in square brackets the endpoints, where they
are. "hinted elsewhere": by topology hints the endpoint is for other nodes. What is not said is as usual.)`

// Shrinking takes at most this many reproductions, and no more time than patience.shrink.
const shrinkTries = 300

// shrunk makes the error of the episode's last wave as simple as possible.
func (r *randomRun) shrunk(ctx context.Context, flows []traffic, err error) error {
	original, originalDump := r.script, r.dump(ctx)
	if f := (*flowsFailed)(nil); errors.As(err, &f) {
		flows = f.traffic
	}
	deadline := time.Now().Add(r.patience.shrink)
	var last error
	var lastDump string
	fails := func(sc script) bool {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return false
		}
		if e := r.reproduce(ctx, sc, flows); e != nil {
			last, lastDump = e, r.dump(ctx)
			return true
		}
		return false
	}
	defer func() {
		_ = r.cleanup(context.WithoutCancel(ctx))
	}()
	if !fails(original) {
		return fmt.Errorf("%w\n\nIt could not be reproduced. What had happened:\n%v\nThe ruleset:\n%s", err, original,
			indent(originalDump))
	}
	small := shrink(original, fails, shrinkTries)
	// The last reproduction that failed need not be that of the smallest script.
	if e := r.reproduce(ctx, small, flows); e != nil {
		last, lastDump = e, r.dump(ctx)
	}
	return fmt.Errorf("%w\n\nWhat it takes:\n%v\n%s\nThe ruleset:\n%s", last, indent(strings.TrimSpace(small.String())),
		notation, indent(lastDump))
}

// reproduce takes a fresh backend through a script, and tries traffic at its end.
func (s *session) reproduce(ctx context.Context, sc script, flows []traffic) error {
	if err := s.cleanup(ctx); err != nil {
		return err
	}
	impatient := *s
	impatient.patience.Answer = min(s.patience.Answer, time.Second)
	r := &randomRun{session: &impatient, script: sc, effort: effort{visits: 20, copies: 20}}
	defer func() {
		s.sink, s.end, s.told, s.cluster, s.setup, s.env = r.sink, r.end, r.told, r.cluster, r.setup, r.env
	}()
	for i, st := range sc.steps {
		var now []traffic
		if i == len(sc.steps)-1 {
			now = flows
		}
		if err := r.wave(ctx, st, now); err != nil {
			return err
		}
	}
	return nil
}
