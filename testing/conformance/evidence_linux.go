package conformance

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// failuresOf returns the error of a case as records, and how many failures it does not have.
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
			f = report.Compare(from, to, flow.out, flow.seen.Observation, placeOf)
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

// placeOf returns the name of the place that has an address, or "".
func placeOf(a netip.Addr) string {
	for _, p := range network.Places() {
		if p.V4 == a || p.V6 == a {
			return p.Name
		}
	}
	return ""
}

// firstFlow returns the first flow that went wrong, nil if the error is about something else.
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

// explain adds the objects that a failure takes.
func (l *lane) explain(ctx context.Context, r *report.Result, err error) {
	s := l.session
	if len(r.Failures) == 0 || s.cluster == nil {
		return
	}
	var objects []metav1.Object
	for _, o := range s.program.wanted {
		if !slices.Contains(s.program.always, o) {
			objects = append(objects, o)
		}
	}
	if flow := firstFlow(err); flow != nil && s.sink != nil && !isProgramError(err) {
		if small := s.shrunk(ctx, flow); small != nil {
			objects = small
		}
	}
	text, err := report.Objects(objects)
	if err != nil {
		text = "# " + err.Error()
	}
	r.Failures[0].Objects = text
}

// The tries and the time for finding a smaller state in which a flow goes wrong.
const (
	programShrinkTries = 30
	programShrinkTime  = 20 * time.Second
)

// shrunk returns the objects of a smaller state in which a flow goes wrong, nil if it does not go wrong again.
func (s *session) shrunk(ctx context.Context, flow *flowError) []metav1.Object {
	ctx, cancel := context.WithTimeout(ctx, 2*programShrinkTime)
	defer cancel()
	state := script{setup: s.setup, steps: []scriptStep{{services: slices.Clone(s.services)}}}
	for i, svc := range s.services {
		state.steps[0].services[i] = svc.withDefaults(i)
	}
	impatient := *s
	impatient.program = nil
	impatient.patience.Answer = min(s.patience.Answer, time.Second)
	until := time.Now().Add(programShrinkTime)
	fails := func(sc script) bool {
		if time.Now().After(until) || s.put(ctx, sc.steps[0].services...) != nil {
			return false
		}
		// What is late is not wrong: it has to be wrong a while later, too.
		for range 2 {
			impatient.told = s.told
			list, err := impatient.expect(slices.Repeat([]network.Attempt{flow.Attempt}, 4))
			if err != nil {
				return false
			}
			for i := range list {
				list[i].anySource = flow.anySource
				if flow.out.AlsoAllowed == nil {
					list[i].out.AlsoAllowed = nil
				}
			}
			if impatient.verify(ctx, list) == nil {
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
	objects, err := objectsOf(small.steps[0].services, s.program.families)
	if err != nil {
		return nil
	}
	return objects
}
