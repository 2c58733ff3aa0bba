package conformance

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// failuresOf converts a case's error to records, and counts the failures that it left out.
func failuresOf(err error) (list []report.Failure, more int) {
	var step *stepError
	var flows *flowErrors
	if !errors.As(err, &flows) {
		seen := err.Error()
		var logged interface{ Log() string }
		if errors.As(err, &logged) {
			seen += "\nIts last lines:\n" + logged.Log()
		}
		return []report.Failure{{Seen: seen}}, 0
	}
	for _, e := range flows.list {
		f := report.Failure{Seen: e.Error()}
		var flow *flowError
		if errors.As(e, &flow) {
			from, to, _ := strings.Cut(flow.About, " to ")
			f = evidence.Compare(from, to, flow.out, flow.seen.Observation, placeOf)
			f.Seen = flow.what()
		}
		if errors.As(err, &step) {
			f.Step = step.step
		} else if before, found := strings.CutSuffix(err.Error(), flows.Error()); found {
			f.Step = strings.TrimSuffix(strings.TrimSpace(before), ":")
		}
		list = append(list, f)
	}
	return list, flows.more
}

// placeOf returns the name of the place with this address, or "".
func placeOf(a netip.Addr) string {
	for _, p := range network.Places() {
		if p.V4 == a || p.V6 == a {
			return p.Name
		}
	}
	return ""
}

// firstFlow returns the first failed flow, or nil if the error is about something else.
func firstFlow(err error) *flowError {
	var flows *flowErrors
	if errors.As(err, &flows) {
		for _, e := range flows.list {
			var flow *flowError
			if errors.As(e, &flow) {
				return flow
			}
		}
	}
	return nil
}

// explain adds to a result the objects of its failure, if possible reduced to the fewest that reproduce it.
func (l *lane) explain(ctx context.Context, r *report.Result, err error, reduce bool) {
	b := l.testbed
	if len(r.Failures) == 0 || b.cluster == nil {
		return
	}
	var objects []metav1.Object
	for _, o := range b.program.wanted {
		if !slices.Contains(b.program.always, o) {
			objects = append(objects, o)
		}
	}
	if flow := firstFlow(err); reduce && flow != nil && b.sink != nil && !isProgramError(err) {
		if small := b.shrunk(ctx, flow); small != nil {
			objects = small
		}
	}
	text, err := evidence.Objects(objects)
	if err != nil {
		text = "# " + err.Error()
	}
	r.Failures[0].Objects = text
}

// The limits for reducing a state.
const (
	programShrinkTries = 30
	programShrinkTime  = 20 * time.Second
)

// shrunk returns the objects of a smaller state in which a flow still fails, or nil if the failure does not recur.
func (b *testbed) shrunk(ctx context.Context, flow *flowError) []metav1.Object {
	ctx, cancel := context.WithTimeout(ctx, 2*programShrinkTime)
	defer cancel()
	state := script{setup: b.setup, steps: []scriptStep{{services: slices.Clone(b.services)}}}
	for i, svc := range b.services {
		state.steps[0].services[i] = svc.withDefaults(i)
	}
	brief := *b
	brief.program = nil
	brief.timeouts.Answer = min(b.timeouts.Answer, time.Second)
	until := time.Now().Add(programShrinkTime)
	fails := func(sc script) bool {
		if time.Now().After(until) || b.put(ctx, sc.steps[0].services...) != nil {
			return false
		}
		// A late result is not wrong: the failure must last.
		for range 2 {
			brief.described = b.described
			list, err := brief.expect(slices.Repeat([]network.Attempt{flow.Attempt}, 4))
			if err != nil {
				return false
			}
			for i := range list {
				list[i].anySource = flow.anySource
				if flow.out.AlsoAllowed == nil {
					list[i].out.AlsoAllowed = nil
				}
			}
			if brief.verify(ctx, list) == nil {
				return false
			}
			select {
			case <-ctx.Done():
				return false
			case <-time.After(300 * time.Millisecond):
			}
		}
		return true
	}
	if !fails(state) {
		return nil
	}
	small := shrink(state, fails, programShrinkTries)
	objects, err := objectsOf(small.steps[0].services, b.program.families)
	if err != nil {
		return nil
	}
	return objects
}
