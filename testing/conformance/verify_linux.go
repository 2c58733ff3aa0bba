package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// maxFailures is how many failures of one case are printed in full.
const maxFailures = 5

// failures is an error that says what went wrong with flows.
type failures struct {
	list []string
	more int
}

func (f *failures) add(text string) {
	if len(f.list) == maxFailures {
		f.more++
		return
	}
	f.list = append(f.list, text)
}

func (f *failures) err() error {
	if len(f.list) == 0 {
		return nil
	}
	text := strings.Join(f.list, "\n\n")
	if f.more > 0 {
		text += fmt.Sprintf("\n\n... and %d more", f.more)
	}
	return errors.New(text)
}

// expectation is a flow and its expected outcome.
type expectation struct {
	flow
	out oracle.Outcome
	// anySource: the endpoint may see any source.
	anySource bool
	// served: a process of the node listens at the destination, so that the node does not refuse it.
	served bool
	// external: the destination is an external IP or VIP of some service.
	external bool
	// lacks are the features without which other outcomes are right as well, which waived counts.
	lacks  []Feature
	waived *waivers
}

// check compares the expectation with what was seen, and returns nil or what is wrong.
func (e *expectation) check(o *oracle.Oracle, s seen) error {
	if s.broken != nil {
		return fmt.Errorf("%v\n%v", e.flow, s)
	}
	if e.anySource && s.Verdict == oracle.Deliver {
		for _, d := range e.out.Endpoints {
			if d.Endpoint == s.Endpoint {
				return nil
			}
		}
	}
	refused := e.served && s.Verdict == oracle.Reject
	if !s.accepted && !refused && o.Check(e.out, s.Observation) == nil {
		return nil
	}
	for _, f := range e.lacks {
		for _, also := range e.without(f) {
			if o.Check(also, s.Observation) == nil {
				e.waived.add(f)
				return nil
			}
		}
	}
	return fmt.Errorf("flow: %v\nseen: %v\nwant: %v", e.flow, s, e.out)
}

// without returns what is also right for a backend that lacks a feature.
func (e *expectation) without(f Feature) []oracle.Outcome {
	var list []oracle.Outcome
	also := func(v oracle.Verdict) {
		list = append(list, oracle.Outcome{Flow: e.flow.Flow, Verdict: v})
	}
	switch {
	case f == Refusal && e.allows(oracle.Reject):
		also(oracle.Drop)
	case f == EarlyRefusal && e.allows(oracle.Reject):
		also(oracle.Reject) // after the connection was accepted
		if e.flow.Protocol != model.TCP {
			also(oracle.Drop)
		}
	case f == Hairpins && e.out.Verdict == oracle.Deliver:
		kept := e.out
		kept.AlsoAllowed, kept.Endpoints = nil, slices.Clone(e.out.Endpoints)
		for i, d := range kept.Endpoints {
			kept.Endpoints[i].SourceNAT = d.SourceNAT && d.Endpoint.Addr() != e.flow.Source
		}
		list = append(list, kept)
	case f == EmptySets && len(e.out.Endpoints) == 0:
		also(oracle.NotOurs)
	case f == ExternalPorts && e.external && e.out.Verdict == oracle.NotOurs:
		also(oracle.Reject)
	case f == SourcePreservation && e.out.Verdict == oracle.Deliver:
		masqueraded := e.out
		masqueraded.AlsoAllowed, masqueraded.Endpoints = nil, slices.Clone(e.out.Endpoints)
		for i := range masqueraded.Endpoints {
			masqueraded.Endpoints[i].SourceNAT = true
		}
		list = append(list, masqueraded)
	}
	return list
}

// allowsSilence reports whether no answer at all may be right.
func (e *expectation) allowsSilence() bool {
	return e.allows(oracle.Drop) || slices.ContainsFunc(e.lacks, func(f Feature) bool {
		return slices.ContainsFunc(e.without(f), func(o oracle.Outcome) bool { return o.Verdict == oracle.Drop })
	})
}

// allows reports whether a verdict is right.
func (e *expectation) allows(v oracle.Verdict) bool {
	if e.out.Verdict == v {
		return true
	}
	for _, also := range e.out.AlsoAllowed {
		if also.Verdict == v {
			return true
		}
	}
	return false
}

// attempts is the number of connections that misses an endpoint with a fair share once in 10^12.
func attempts(endpoints int) int {
	if endpoints < 2 {
		return 1
	}
	n := float64(endpoints)
	return int(math.Ceil((math.Log(1e-12) - math.Log(n)) / math.Log(1-1/n)))
}

// verify tries flows until each has reached all its possible endpoints, and reports what went wrong.
func (s *session) verify(ctx context.Context, o *oracle.Oracle, flows []expectation) error {
	var failed failures
	for _, wrong := range s.judge(ctx, o, flows) {
		if wrong != "" {
			failed.add(wrong)
		}
	}
	return failed.err()
}

// judge tries flows until each has reached all its possible endpoints, and returns for each what is wrong, or "".
func (s *session) judge(ctx context.Context, o *oracle.Oracle, flows []expectation) []string {
	wrong := make([]string, len(flows))
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
		var batch []attempt
		var owners []int
		for _, i := range open {
			e := flows[i]
			a := attempt{e.flow, e.allowsSilence()}
			for range max(1, min(round, attempts(len(e.out.Endpoints))-tried[i])) {
				batch, owners = append(batch, a), append(owners, i)
			}
		}
		for n, seen := range s.n.tryAll(ctx, batch, s.patience) {
			i := owners[n]
			tried[i]++
			delete(missing[i], seen.Endpoint)
			if err := flows[i].check(o, seen); err != nil && wrong[i] == "" {
				wrong[i] = err.Error()
			}
		}
		open = slices.DeleteFunc(open, func(i int) bool {
			if wrong[i] == "" && len(missing[i]) > 0 && tried[i] >= attempts(len(flows[i].out.Endpoints)) {
				wrong[i] = fmt.Sprintf("flow: %v\nseen: none of %d connections reached %s\nwant: %v",
					flows[i].flow, tried[i], joinKeys(missing[i]), flows[i].out)
			}
			return wrong[i] != "" || len(missing[i]) == 0
		})
	}
	return wrong
}

func joinKeys(set map[netip.AddrPort]bool) string {
	var texts []string
	for k := range set {
		texts = append(texts, k.String())
	}
	return strings.Join(texts, " or ")
}
