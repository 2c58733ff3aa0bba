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
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Random applies n random states in turn and compares random traffic with the oracle. Now and then it restarts the
// backend, cancels a Sync, or starts a fresh backend with another configuration. The seed determines everything.
//
// The first failure ends the test, after Random has reduced the events that caused it. The message contains the seed,
// these events, the flows, and the ruleset. Random needs what [Test] needs.
func Random(t *testing.T, f Factory, seed uint64, n int) {
	t.Helper()
	testbedOf(t, f, seed).runRandom(t, seed, n)
}

func (b *testbed) runRandom(t *testing.T, seed uint64, n int) {
	t.Helper()
	if err := b.random(t.Context(), seed, n); err != nil {
		t.Errorf("random test with seed %d and %d states\n\n%v", seed, n, err)
	}
	b.logWaived(t)
}

func (b *testbed) random(ctx context.Context, seed uint64, n int) error {
	g := newGenerator(seed, b.factory)
	for done := 0; done < n; {
		r := &randomRun{testbed: b, script: script{setup: g.setup()}, effort: effort{visits: 3, copies: 1}}
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
		if err := b.cleanup(ctx); err != nil {
			return err
		}
	}
	return nil
}

// randomRun is one episode: a fresh backend and its successive states.
type randomRun struct {
	*testbed
	script script
	// contacts are the endpoints that clients of services with affinity reached.
	contacts map[contactKey][]contact
	effort   effort
}

// effort is how often traffic is tried in each state. To find a fault, a little traffic to each of many services is
// enough. To reproduce it, few services may be left: with one right and one wrong endpoint, n tries all pick the right
// one with a probability of 1 in 2^n.
type effort struct {
	// visits is the number of successive connections of a client to a service with affinity.
	visits int
	// copies is the maximum number of tries of any other flow.
	copies int
}

type contactKey struct {
	port    model.PortName
	source  netip.Addr
	address netip.AddrPort // only if the backend waives sharedAffinityCase
}

type contact struct {
	endpoint netip.AddrPort
	at       time.Time
}

// flowsFailed is an error with the failed traffic.
type flowsFailed struct {
	failures
	traffic []traffic
}

func (e *flowsFailed) add(wrong error, tr traffic) {
	e.failures.add(wrong)
	e.traffic = append(e.traffic, tr)
}

func (e *flowsFailed) Error() string { return e.failures.err().Error() }

// wave applies a state with its event, and tries traffic.
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
		r.contacts = map[contactKey][]contact{} // Affinity need not survive a restart.
	}
	before := r.described
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
		before, after := last.services[key.port.Service], r.described.services[key.port.Service]
		if before == nil || after == nil || before.SessionAffinityTimeout != after.SessionAffinityTimeout {
			delete(r.contacts, key)
			continue
		}
		r.contacts[key] = slices.DeleteFunc(list, func(c contact) bool {
			k := model.EndpointKey{Port: key.port, Target: c.endpoint}
			old, now := last.endpoints[k], r.described.endpoints[k]
			return old == nil || now == nil || !now.Sets.Has(old.Sets)
		})
	}
}

// tryTraffic tries flows in the applied state. Flows with affinity depend on earlier ones and run in turn; all others
// run concurrently.
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
	// Try each once, and again only if that succeeded: failures are often silent and take long.
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

// visitOften makes a few successive connections of one client to a service with affinity.
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
		seen := r.try(x.Attempt, r.timeouts.Timeouts)
		if err := x.check(seen); err != nil {
			return err
		}
		if seen.Verdict == oracle.Deliver {
			r.contacts[key] = append(r.contacts[key], contact{seen.Endpoint, time.Now()})
		}
	}
	return nil
}

// notation explains the format of a script.
const notation = `(Each line is a service: its name; in round brackets the slot, which its addresses and node ports are
counted from, and what is set; its ports, as name, number/protocol->port of the endpoints; in square brackets the
endpoints, where they are. "hinted elsewhere": by topology hints the endpoint is for other nodes. What is not said is
the default.)`

// shrinkTries is the maximum number of reproductions for shrinking; timeouts.shrink limits its time.
const shrinkTries = 300

// shrunk reduces the script that led to an error of the last wave.
func (r *randomRun) shrunk(ctx context.Context, flows []traffic, err error) error {
	original, originalDump := r.script, r.dump(ctx)
	if f := (*flowsFailed)(nil); errors.As(err, &f) {
		flows = f.traffic
	}
	deadline := time.Now().Add(r.timeouts.shrink)
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
	// The last failing reproduction may not be that of the smallest script.
	if e := r.reproduce(ctx, small, flows); e != nil {
		last, lastDump = e, r.dump(ctx)
	}
	return fmt.Errorf("%w\n\nWhat it takes:\n%v\n%s\nThe ruleset:\n%s", last, indent(strings.TrimSpace(small.String())),
		notation, indent(lastDump))
}

// reproduce runs a script on a fresh backend, and tries traffic at its end.
func (b *testbed) reproduce(ctx context.Context, sc script, flows []traffic) error {
	if err := b.cleanup(ctx); err != nil {
		return err
	}
	brief := *b
	brief.timeouts.Answer = min(b.timeouts.Answer, time.Second)
	r := &randomRun{testbed: &brief, script: sc, effort: effort{visits: 20, copies: 20}}
	defer func() {
		b.sink, b.end, b.described, b.cluster, b.setup, b.env = r.sink, r.end, r.described, r.cluster, r.setup, r.env
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
