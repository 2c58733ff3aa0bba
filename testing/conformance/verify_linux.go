package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/testing/oracle"
)

// maxFailures is how many failures of one case are told in full.
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

// expectation is a flow and what must come of it.
type expectation struct {
	flow
	out oracle.Outcome
	// anySource: whatever source the endpoint sees is right.
	anySource bool
	// tolerant: a drop will do where a refusal is due.
	tolerant bool
	// toHost: the destination is an address of the node, which refuses what is not served; unless silent: then it does not.
	toHost, silent bool
	// unspread: which of the endpoints are reached is not looked at.
	unspread bool
}

// check compares what was seen, and returns nil or what is wrong.
func (e *expectation) check(o *oracle.Oracle, s seen) error {
	if s.broken != nil {
		return fmt.Errorf("%v\n%v", e.flow, s)
	}
	observed := s.Observation
	if e.anySource && observed.Verdict == oracle.Deliver {
		for _, d := range e.out.Endpoints {
			if d.Endpoint == observed.Endpoint {
				return nil
			}
		}
	}
	if e.tolerant && observed.Verdict == oracle.Drop && e.allows(oracle.Reject) {
		return nil
	}
	if observed.Verdict == oracle.NotOurs && e.allows(oracle.NotOurs) {
		// The oracle knows no way to see that a flow was left alone; this network does.
		return nil
	}
	if !e.unexplained(observed.Verdict) && observed.Verdict != oracle.NotOurs && o.Check(e.out, observed) == nil {
		return nil
	}
	return fmt.Errorf("flow: %v\nseen: %v\nwant: %v", e.flow, s, e.out)
}

// unexplained tells whether nothing in this network refuses or drops a flow that is left alone, so that it must have been the
// backend. Only the node itself refuses what it does not serve, and no one drops anything.
func (e *expectation) unexplained(v oracle.Verdict) bool {
	switch v {
	case oracle.Reject:
		return !e.allows(oracle.Reject) && !e.toHost
	case oracle.Drop:
		return !e.allows(oracle.Drop) && !e.silent
	}
	return false
}

// allows tells whether a verdict is right.
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

// attempts is after how many connections an endpoint that gets its share of them has been reached, but for one time in
// 10^12.
func attempts(endpoints int) int {
	if endpoints < 2 {
		return 1
	}
	n := float64(endpoints)
	return int(math.Ceil((math.Log(1e-12) - math.Log(n)) / math.Log(1-1/n)))
}

// verify tries flows until each has reached all the endpoints that it may reach, and tells what went wrong.
func (s *session) verify(ctx context.Context, o *oracle.Oracle, flows []expectation) error {
	type progress struct {
		expectation
		missing map[netip.AddrPort]bool
		tried   int
	}
	var open []*progress
	for _, e := range flows {
		p := &progress{expectation: e, missing: map[netip.AddrPort]bool{}}
		if !e.unspread && e.out.AffinityTimeout == 0 {
			for _, d := range e.out.Endpoints {
				p.missing[d.Endpoint] = true
			}
		}
		open = append(open, p)
	}
	var failed failures
	for round := 1; len(open) > 0; round *= 2 {
		var batch []attempt
		var owners []*progress
		for _, p := range open {
			a := attempt{p.flow, p.allows(oracle.Drop) || p.tolerant && p.allows(oracle.Reject)}
			for range max(1, min(round, attempts(len(p.out.Endpoints))-p.tried)) {
				batch, owners = append(batch, a), append(owners, p)
			}
		}
		wrong := map[*progress]bool{}
		for i, seen := range s.n.tryAll(ctx, batch, s.patience) {
			p := owners[i]
			p.tried++
			delete(p.missing, seen.Endpoint)
			if err := p.check(o, seen); err != nil && !wrong[p] {
				wrong[p] = true
				failed.add(err.Error())
			}
		}
		var next []*progress
		for _, p := range open {
			switch {
			case wrong[p], len(p.missing) == 0:
			case p.tried >= attempts(len(p.out.Endpoints)):
				failed.add(fmt.Sprintf("flow: %v\nseen: none of %d connections reached %s\nwant: %v",
					p.flow, p.tried, joinKeys(p.missing), p.out))
			default:
				next = append(next, p)
			}
		}
		open = next
	}
	return failed.err()
}

func joinKeys(set map[netip.AddrPort]bool) string {
	var texts []string
	for k := range set {
		texts = append(texts, k.String())
	}
	return strings.Join(texts, " or ")
}
