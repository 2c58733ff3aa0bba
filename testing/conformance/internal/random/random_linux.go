package random

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// Run applies n random states in turn to a testbed, and tries random traffic in each. It returns the first failure,
// reduced to the events that cause it.
func Run(ctx context.Context, b *testbed.Testbed, seed uint64, n int) error {
	g := NewGenerator(seed, b.Factory)
	for done := 0; done < n; {
		r := &episode{Testbed: b, script: Script{Setup: g.Setup()}, effort: effort{visits: 3, copies: 1}}
		var services []cluster.Service
		for range min(EpisodeLength, n-done) {
			done++
			before := services
			st := g.Next(services)
			services = st.Services
			r.script.Steps = append(r.script.Steps, st)
			if err := ctx.Err(); err != nil {
				return err
			}
			trials := g.TrialsOf(services, before, TrialsPerWave)
			if err := r.wave(ctx, st, trials); err != nil {
				return fmt.Errorf("state %d: %w", done, r.shrunk(ctx, trials, err))
			}
		}
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
	}
	return nil
}

// episode is one episode: a fresh backend and its successive states.
type episode struct {
	*testbed.Testbed
	script Script
	// reached are the endpoints that clients of services with affinity reached.
	reached map[clientOfPort][]reached
	effort  effort
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

// clientOfPort is a client of a service port.
type clientOfPort struct {
	port    model.PortName
	source  netip.Addr
	address netip.AddrPort // only if the backend waives backend.SharedAffinityCase
}

// reached is an endpoint, and when a client reached it.
type reached struct {
	endpoint netip.AddrPort
	at       time.Time
}

// trialsFailed is an error with the failed trials.
type trialsFailed struct {
	testbed.Failures
	trials []Trial
}

func (e *trialsFailed) add(wrong error, tr Trial) {
	e.Failures.Add(wrong)
	e.trials = append(e.trials, tr)
}

func (e *trialsFailed) Error() string { return e.Failures.Err().Error() }

// wave applies a state with its event, and tries connections.
func (r *episode) wave(ctx context.Context, st Step, trials []Trial) error {
	if r.Sink == nil {
		if err := r.Start(ctx, r.script.Setup); err != nil {
			return err
		}
		r.reached = map[clientOfPort][]reached{}
	} else if st.event == restarted {
		if err := r.Restart(ctx); err != nil {
			return err
		}
		r.reached = map[clientOfPort][]reached{} // Affinity need not survive a restart.
	}
	before := r.Described
	if err := r.Describe(st.Services...); err != nil {
		return err
	}
	r.forgetReached(before)
	if st.event == cancelled {
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		_ = r.Sync(stopped)
	}
	if st.event == cancelled || st.event == resynced {
		if err := r.ForceResync(); err != nil {
			return err
		}
	}
	if err := r.Sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return r.tryTraffic(ctx, trials)
}

// forgetReached drops the endpoints to which affinity ends with a new state: the port or its affinity has changed, or
// the endpoint has left one of its sets.
func (r *episode) forgetReached(last cluster.State) {
	for key, list := range r.reached {
		before, after := last.Services[key.port.Service], r.Described.Services[key.port.Service]
		if before == nil || after == nil || before.SessionAffinityTimeout != after.SessionAffinityTimeout {
			delete(r.reached, key)
			continue
		}
		r.reached[key] = slices.DeleteFunc(list, func(c reached) bool {
			k := model.EndpointKey{Port: key.port, Target: c.endpoint}
			old, now := last.Endpoints[k], r.Described.Endpoints[k]
			return old == nil || now == nil || !now.Sets.Has(old.Sets)
		})
	}
}

// tryTraffic tries connections in the applied state. Those with affinity depend on earlier ones and run in turn; all
// others run concurrently.
func (r *episode) tryTraffic(ctx context.Context, trials []Trial) error {
	failed := &trialsFailed{}
	var free []testbed.Expectation
	var freeTrials []Trial
	for _, tr := range trials {
		expected, err := r.Expect(tr.Attempts(r.Env.Families, r.Protocols()))
		if err != nil {
			return err
		}
		for _, x := range expected {
			if x.Out.AffinityTimeout == 0 {
				free, freeTrials = append(free, x), append(freeTrials, tr)
			} else if wrong := r.visitOften(x); wrong != nil {
				failed.add(wrong, tr)
			}
		}
	}
	reported := make([]bool, len(free))
	// Try each once, and again only if that succeeded: failures are often silent and take long.
	for _, copies := range []int{1, r.effort.copies - 1} {
		for i, wrong := range r.VerifyEach(ctx, slices.Repeat(free, copies)) {
			if i %= len(free); wrong != nil && !reported[i] {
				reported[i] = true
				failed.add(wrong, freeTrials[i])
			}
		}
		if failed.Err() != nil {
			return failed
		}
	}
	return nil
}

// visitOften makes a few successive connections of one client to a service with affinity.
func (r *episode) visitOften(x testbed.Expectation) error {
	out, key := x.Out, clientOfPort{port: x.Out.Port, source: x.Source}
	if r.Factory.WaivesCase(backend.SharedAffinityCase) {
		key.address = x.Destination
	}
	for range r.effort.visits {
		var earlier []oracle.Connection
		for _, c := range r.reached[key] {
			earlier = append(earlier, oracle.Connection{Endpoint: c.endpoint, Ago: time.Since(c.at)})
		}
		x.Out = out.After(earlier...)
		x.DropIsRight = x.AllowsSilence()
		seen := r.Try(x.Attempt, r.Timeouts.Timeouts)
		if err := x.Check(seen); err != nil {
			return err
		}
		if seen.Verdict == oracle.Deliver {
			r.reached[key] = append(r.reached[key], reached{seen.Endpoint, time.Now()})
		}
	}
	return nil
}

// notation explains the format of a script.
const notation = `(Each line is a service: its name; in round brackets the slot, which its addresses and node ports are
counted from, and what is set; its ports, as name, number/protocol->port of the endpoints; in square brackets the
endpoints, where they are. "hinted elsewhere": by topology hints the endpoint is for other nodes. What is not said is
the default.)`

// shrinkTries is the maximum number of reproductions for shrinking; Timeouts.Shrink limits its time.
const shrinkTries = 300

// shrunk reduces the script that led to an error of the last wave.
func (r *episode) shrunk(ctx context.Context, trials []Trial, err error) error {
	original, originalDump := r.script, r.Dump(ctx)
	if f := (*trialsFailed)(nil); errors.As(err, &f) {
		trials = f.trials
	}
	deadline := time.Now().Add(r.Timeouts.Shrink)
	var last error
	var lastDump string
	fails := func(sc Script) bool {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return false
		}
		if e := reproduce(ctx, r.Testbed, sc, trials); e != nil {
			last, lastDump = e, r.Dump(ctx)
			return true
		}
		return false
	}
	defer func() {
		_ = r.Cleanup(context.WithoutCancel(ctx))
	}()
	if !fails(original) {
		return fmt.Errorf("%w\n\nIt could not be reproduced. What had happened:\n%v\nThe ruleset:\n%s", err, original,
			testbed.Indent(originalDump))
	}
	small := Shrink(original, fails, shrinkTries)
	// The last failing reproduction may not be that of the smallest script.
	if e := reproduce(ctx, r.Testbed, small, trials); e != nil {
		last, lastDump = e, r.Dump(ctx)
	}
	return fmt.Errorf("%w\n\nWhat it takes:\n%v\n%s\nThe ruleset:\n%s", last,
		testbed.Indent(strings.TrimSpace(small.String())),
		notation, testbed.Indent(lastDump))
}

// reproduce runs a script on a fresh backend, and tries connections at its end.
func reproduce(ctx context.Context, b *testbed.Testbed, sc Script, trials []Trial) error {
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	answer := b.Timeouts.Answer
	defer func() { b.Timeouts.Answer = answer }()
	b.Timeouts.Answer = min(answer, time.Second)
	r := &episode{Testbed: b, script: sc, effort: effort{visits: 20, copies: 20}}
	for i, st := range sc.Steps {
		var now []Trial
		if i == len(sc.Steps)-1 {
			now = trials
		}
		if err := r.wave(ctx, st, now); err != nil {
			return err
		}
	}
	return nil
}
