package conformance

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
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// maxFailures is the number of failures of a case that are printed in full.
const maxFailures = 5

// failures collects the errors of flows.
type failures struct {
	list []error
	more int
}

// add records an error; nil is ignored.
func (f *failures) add(err error) {
	switch {
	case err == nil:
	case len(f.list) == maxFailures:
		f.more++
	default:
		f.list = append(f.list, err)
	}
}

func (f *failures) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return &flowErrors{failures: *f}
}

// flowErrors is the resulting error.
type flowErrors struct{ failures }

func (e *flowErrors) Error() string {
	var texts []string
	for _, err := range e.list {
		texts = append(texts, err.Error())
	}
	text := strings.Join(texts, "\n\n")
	if e.more > 0 {
		text += fmt.Sprintf("\n\n... and %d more", e.more)
	}
	return text
}

// flowError says that a flow's outcome is wrong.
type flowError struct {
	expectation
	seen network.Seen
	text string // replaces the description of seen, if not ""
}

func (e *flowError) Error() string {
	return fmt.Sprintf("flow: %v\nseen: %v\nwant: %v", e.Attempt, e.what(), e.out)
}

// what describes the observed result.
func (e *flowError) what() string { return cmp.Or(e.text, e.seen.String()) }

// expectation is a flow and its expected outcome.
type expectation struct {
	network.Attempt
	out    oracle.Outcome
	oracle *oracle.Oracle
	// anySource: the endpoint may see any source.
	anySource bool
	// served: a process of the node listens at the destination, so the node does not refuse it.
	served   bool
	external bool
	// factory has the features that the backend lacks. They make other outcomes acceptable, which waived counts.
	factory *Factory
	waived  *waivers
}

// check compares the result with the expectation. It returns nil if they agree.
func (e *expectation) check(s network.Seen) error {
	if s.Broken != nil {
		return fmt.Errorf("%v\n%v", e.Attempt, s)
	}
	if e.anySource && s.Verdict == oracle.Deliver {
		for _, d := range e.out.Endpoints {
			if d.Endpoint == s.Endpoint {
				return nil
			}
		}
	}
	refused := e.served && s.Verdict == oracle.Reject
	if !s.Accepted && !refused && e.oracle.Check(e.out, s.Observation) == nil {
		return nil
	}
	for _, also := range e.tolerated() {
		if e.oracle.Check(also.Outcome, s.Observation) == nil {
			e.waived.add(also.why)
			return nil
		}
	}
	return &flowError{expectation: *e, seen: s}
}

// tolerated is an outcome that is acceptable because the backend lacks a feature or waives a case.
type tolerated struct {
	why string
	oracle.Outcome
}

// tolerated returns the outcomes that are acceptable too.
func (e *expectation) tolerated() (list []tolerated) {
	also := func(why Feature, verdicts ...oracle.Verdict) {
		for _, v := range verdicts {
			list = append(list, tolerated{string(why), oracle.Outcome{Flow: e.Attempt.Flow, Verdict: v}})
		}
	}
	alsoFrom := func(why Feature, masqueraded func(oracle.Destination) bool) {
		out := e.out
		out.AlsoAllowed, out.Endpoints = nil, slices.Clone(e.out.Endpoints)
		for i, d := range out.Endpoints {
			out.Endpoints[i].SourceNAT = masqueraded(d)
		}
		list = append(list, tolerated{string(why), out})
	}
	if e.factory.lacks(Refusal) && e.allows(oracle.Reject) {
		also(Refusal, oracle.Drop, oracle.Reject) // Reject: after the connection was accepted
	}
	if e.factory.waives(externalPortsCase) && e.external && e.out.Verdict == oracle.NotOurs {
		also(externalPortsCase, oracle.Reject)
	}
	if e.factory.lacks(Routes) && len(e.out.Endpoints) == 0 {
		also(Routes, oracle.NotOurs)
	}
	if e.factory.lacks(Routes) && e.out.Verdict == oracle.Deliver {
		alsoFrom(Routes, func(d oracle.Destination) bool { return d.SourceNAT && d.Endpoint.Addr() != e.Source })
	}
	if e.factory.lacks(SourcePreservation) && e.out.Verdict == oracle.Deliver {
		alsoFrom(SourcePreservation, func(oracle.Destination) bool { return true })
	}
	return list
}

// allowsSilence reports whether it may be right that nothing answers.
func (e *expectation) allowsSilence() bool {
	return e.allows(oracle.Drop) ||
		slices.ContainsFunc(e.tolerated(), func(t tolerated) bool { return t.Verdict == oracle.Drop })
}

// allows reports whether a verdict is right.
func (e *expectation) allows(v oracle.Verdict) bool {
	return e.out.Verdict == v ||
		slices.ContainsFunc(e.out.AlsoAllowed, func(also oracle.Outcome) bool { return also.Verdict == v })
}

// attempts returns the number of connections after which an endpoint with a fair share is missed with probability
// 10^-12.
func attempts(endpoints int) int {
	if endpoints < 2 {
		return 1
	}
	n := float64(endpoints)
	return int(math.Ceil((math.Log(1e-12) - math.Log(n)) / math.Log(1-1/n)))
}

// verify tries flows until each has reached all of its possible endpoints, and reports the failures.
func (b *testbed) verify(ctx context.Context, flows []expectation) error {
	var failed failures
	for _, wrong := range b.settled(ctx, flows, b.judge(ctx, flows)) {
		failed.add(wrong)
	}
	return failed.err()
}

// judge tries flows until each has reached all of its possible endpoints. It returns an error or nil for each.
func (b *testbed) judge(ctx context.Context, flows []expectation) []error {
	wrong := make([]error, len(flows))
	missing := make([]map[netip.AddrPort]bool, len(flows))
	tried := make([]int, len(flows))
	var open []int
	for i, e := range flows {
		missing[i] = map[netip.AddrPort]bool{}
		if e.out.AffinityTimeout == 0 {
			for _, d := range e.out.Endpoints {
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
			e.DropIsRight = e.allowsSilence()
			for range max(1, min(round, attempts(len(e.out.Endpoints))-tried[i])) {
				batch, owners = append(batch, e.Attempt), append(owners, i)
			}
		}
		for n, seen := range b.tryAll(ctx, batch) {
			i := owners[n]
			tried[i]++
			delete(missing[i], seen.Endpoint)
			if wrong[i] == nil {
				wrong[i] = flows[i].check(seen)
			}
		}
		open = slices.DeleteFunc(open, func(i int) bool {
			if wrong[i] == nil && len(missing[i]) > 0 && tried[i] >= attempts(len(flows[i].out.Endpoints)) {
				wrong[i] = &flowError{expectation: flows[i], text: fmt.Sprintf("none of %d connections reached %v", tried[i],
					slices.Collect(maps.Keys(missing[i])))}
			}
			return wrong[i] != nil || len(missing[i]) == 0
		})
	}
	return wrong
}

// tryAll makes the connections of flows, a few concurrently, and returns their results.
func (b *testbed) tryAll(ctx context.Context, flows []network.Attempt) []network.Seen {
	result := make([]network.Seen, len(flows))
	network.Concurrently(len(flows), func(i int) {
		if err := ctx.Err(); err != nil {
			result[i] = network.Seen{Broken: err}
			return
		}
		result[i] = b.try(flows[i], b.timeouts.Timeouts)
	})
	return result
}

// each calls f for each element of a list, a few concurrently, and joins the errors.
func each[T any](list []T, f func(T) error) error {
	wrong := make([]error, len(list))
	network.Concurrently(len(list), func(i int) { wrong[i] = f(list[i]) })
	var failed failures
	for _, err := range wrong {
		failed.add(err)
	}
	return failed.err()
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
