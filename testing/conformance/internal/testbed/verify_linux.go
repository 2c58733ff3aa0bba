package testbed

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// MaxFailures is the number of failures of a case that are printed in full.
const MaxFailures = 5

// Failures collects the errors of flows.
type Failures struct {
	List []error
	More int
}

// Add records an error; nil is ignored.
func (f *Failures) Add(err error) {
	switch {
	case err == nil:
	case len(f.List) == MaxFailures:
		f.More++
	default:
		f.List = append(f.List, err)
	}
}

// Err returns the errors as one, or nil.
func (f *Failures) Err() error {
	if len(f.List) == 0 {
		return nil
	}
	return &FlowErrors{Failures: *f}
}

// FlowErrors is the error that consists of the failures of flows.
type FlowErrors struct{ Failures }

func (e *FlowErrors) Error() string {
	var texts []string
	for _, err := range e.List {
		texts = append(texts, err.Error())
	}
	text := strings.Join(texts, "\n\n")
	if e.More > 0 {
		text += fmt.Sprintf("\n\n... and %d more", e.More)
	}
	return text
}

// FlowError says that a flow's outcome is wrong.
type FlowError struct {
	Expectation
	Seen network.Seen
	text string // replaces the description of seen, if not ""
}

func (e *FlowError) Error() string {
	return fmt.Sprintf("flow: %v\nseen: %v\nwant: %v", e.Attempt, e.What(), e.Out)
}

// What describes the observed result.
func (e *FlowError) What() string { return cmp.Or(e.text, e.Seen.String()) }

// Expectation is a flow and its expected outcome.
type Expectation struct {
	network.Attempt
	Out    oracle.Outcome
	oracle *oracle.Oracle
	// AnySource: the endpoint may see any source.
	AnySource bool
	// Served: a process of the node listens at the destination, so the node does not refuse it.
	Served   bool
	external bool
	// factory has the features that the backend lacks. They make other outcomes acceptable, which waived counts.
	factory *backend.Factory
	waived  *waivers
}

// Expect returns the outcomes that the oracle expects of flows in the current state.
func (b *Testbed) Expect(flows []network.Attempt) ([]Expectation, error) {
	return b.ExpectIn(b.Described, b.Setup.OracleConfig(b.Env.Families), flows)
}

// ExpectIn returns the outcomes that the oracle expects of flows, in a state on a node.
func (b *Testbed) ExpectIn(applied cluster.State, node oracle.Config, flows []network.Attempt) ([]Expectation, error) {
	o, err := applied.Oracle(node)
	if err != nil {
		return nil, err
	}
	list := make([]Expectation, len(flows))
	for i, f := range flows {
		out, err := o.Expect(f.Flow)
		if err == nil && b.Network == nil {
			out, err = b.simulated(o, out, applied)
		}
		if err != nil {
			return nil, err
		}
		e := Expectation{Attempt: f, Out: out, oracle: o, factory: &b.Factory, waived: b.Waived,
			external: applied.IsExternal(f.Destination.Addr())}
		if b.Network != nil && b.Network.RawSCTP(f) && e.allows(oracle.NotOurs) {
			e.Out.AlsoAllowed = append(slices.Clone(out.AlsoAllowed), oracle.Outcome{Flow: f.Flow, Verdict: oracle.Drop,
				Reasons: []oracle.Reason{{Text: "SCTP in user space answers nothing that it does not serve"}}})
		}
		list[i] = e
	}
	return list, nil
}

// Check compares the result with the expectation. It returns nil if they agree.
func (e *Expectation) Check(s network.Seen) error {
	if s.Broken != nil {
		return fmt.Errorf("%v\n%v", e.Attempt, s)
	}
	if e.AnySource && s.Verdict == oracle.Deliver {
		for _, d := range e.Out.Endpoints {
			if d.Endpoint == s.Endpoint {
				return nil
			}
		}
	}
	refused := e.Served && s.Verdict == oracle.Reject
	if !s.Accepted && !refused && e.oracle.Check(e.Out, s.Observation) == nil {
		return nil
	}
	for _, also := range e.tolerated() {
		if e.oracle.Check(also.Outcome, s.Observation) == nil {
			e.waived.add(also.why)
			return nil
		}
	}
	return &FlowError{Expectation: *e, Seen: s}
}

// tolerated is an outcome that is acceptable because the backend lacks a feature or waives a case.
type tolerated struct {
	why string
	oracle.Outcome
}

// tolerated returns the outcomes that are acceptable too.
func (e *Expectation) tolerated() (list []tolerated) {
	also := func(why backend.Feature, verdicts ...oracle.Verdict) {
		for _, v := range verdicts {
			list = append(list, tolerated{string(why), oracle.Outcome{Flow: e.Attempt.Flow, Verdict: v}})
		}
	}
	alsoFrom := func(why backend.Feature, masqueraded func(oracle.Destination) bool) {
		out := e.Out
		out.AlsoAllowed, out.Endpoints = nil, slices.Clone(e.Out.Endpoints)
		for i, d := range out.Endpoints {
			out.Endpoints[i].SourceNAT = masqueraded(d)
		}
		list = append(list, tolerated{string(why), out})
	}
	if e.factory.LacksFeature(backend.Refusal) && e.allows(oracle.Reject) {
		also(backend.Refusal, oracle.Drop, oracle.Reject) // Reject: after the connection was accepted
	}
	if e.factory.WaivesCase(backend.ExternalPortsCase) && e.external && e.Out.Verdict == oracle.NotOurs {
		also(backend.ExternalPortsCase, oracle.Reject)
	}
	if e.factory.LacksFeature(backend.Routes) && len(e.Out.Endpoints) == 0 {
		also(backend.Routes, oracle.NotOurs)
	}
	if e.factory.LacksFeature(backend.Routes) && e.Out.Verdict == oracle.Deliver {
		alsoFrom(backend.Routes, func(d oracle.Destination) bool { return d.SourceNAT && d.Endpoint.Addr() != e.Source })
	}
	if e.factory.LacksFeature(backend.SourcePreservation) && e.Out.Verdict == oracle.Deliver {
		alsoFrom(backend.SourcePreservation, func(oracle.Destination) bool { return true })
	}
	return list
}

// AllowsSilence reports whether it may be right that nothing answers.
func (e *Expectation) AllowsSilence() bool {
	return e.allows(oracle.Drop) ||
		slices.ContainsFunc(e.tolerated(), func(t tolerated) bool { return t.Verdict == oracle.Drop })
}

// allows reports whether a verdict is right.
func (e *Expectation) allows(v oracle.Verdict) bool {
	return e.Out.Verdict == v ||
		slices.ContainsFunc(e.Out.AlsoAllowed, func(also oracle.Outcome) bool { return also.Verdict == v })
}

// Attempts returns the number of connections after which an endpoint with a fair share is missed with probability
// 10^-12.
func Attempts(endpoints int) int {
	if endpoints < 2 {
		return 1
	}
	n := float64(endpoints)
	return int(math.Ceil((math.Log(1e-12) - math.Log(n)) / math.Log(1-1/n)))
}

// Verify tries flows until each has reached all of its possible endpoints, and reports the failures.
func (b *Testbed) Verify(ctx context.Context, flows []Expectation) error {
	var failed Failures
	for _, wrong := range b.settled(ctx, flows, b.VerifyEach(ctx, flows)) {
		failed.Add(wrong)
	}
	return failed.Err()
}

// VerifyEach tries flows until each has reached all of its possible endpoints. It returns an error or nil for each.
func (b *Testbed) VerifyEach(ctx context.Context, flows []Expectation) []error {
	wrong := make([]error, len(flows))
	missing := make([]map[netip.AddrPort]bool, len(flows))
	tried := make([]int, len(flows))
	var open []int
	for i, e := range flows {
		missing[i] = map[netip.AddrPort]bool{}
		if e.Out.AffinityTimeout == 0 {
			for _, d := range e.Out.Endpoints {
				missing[i][d.Endpoint] = true
			}
		}
		open = append(open, i)
	}
	for round := 1; len(open) > 0; round *= 2 {
		var batch []network.Attempt
		var owners []int
		for _, i := range open {
			e := flows[i]
			e.DropIsRight = e.AllowsSilence()
			for range max(1, min(round, Attempts(len(e.Out.Endpoints))-tried[i])) {
				batch, owners = append(batch, e.Attempt), append(owners, i)
			}
		}
		for n, seen := range b.TryAll(ctx, batch) {
			i := owners[n]
			tried[i]++
			delete(missing[i], seen.Endpoint)
			if wrong[i] == nil {
				wrong[i] = flows[i].Check(seen)
			}
		}
		open = slices.DeleteFunc(open, func(i int) bool {
			if wrong[i] == nil && len(missing[i]) > 0 && tried[i] >= Attempts(len(flows[i].Out.Endpoints)) {
				wrong[i] = &FlowError{Expectation: flows[i], text: fmt.Sprintf("none of %d connections reached %v", tried[i],
					slices.Collect(maps.Keys(missing[i])))}
			}
			return wrong[i] != nil || len(missing[i]) == 0
		})
	}
	return wrong
}

// TryAll makes the connections of flows, a few concurrently, and returns their results.
func (b *Testbed) TryAll(ctx context.Context, flows []network.Attempt) []network.Seen {
	result := make([]network.Seen, len(flows))
	network.Concurrently(len(flows), func(i int) {
		if err := ctx.Err(); err != nil {
			result[i] = network.Seen{Broken: err}
			return
		}
		result[i] = b.Try(flows[i], b.Timeouts.Timeouts)
	})
	return result
}

// Each calls f for each element of a list, a few concurrently, and joins the errors.
func Each[T any](list []T, f func(T) error) error {
	wrong := make([]error, len(list))
	network.Concurrently(len(list), func(i int) { wrong[i] = f(list[i]) })
	var failed Failures
	for _, err := range wrong {
		failed.Add(err)
	}
	return failed.Err()
}

// waivers counts outcomes accepted only because the backend lacks a feature or waives a case, so that such a result
// does not look like a clean one.
type waivers struct {
	mu    sync.Mutex
	count map[string]int
}

// add counts a deviation, by the name of the feature or the case.
func (w *waivers) add(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == nil {
		w.count = map[string]int{}
	}
	w.count[name]++
}

// String lists the counts by name, one per line; "" if there are none.
func (w *waivers) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for f, n := range w.count {
		lines = append(lines, fmt.Sprintf("%s: %d times", f, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
