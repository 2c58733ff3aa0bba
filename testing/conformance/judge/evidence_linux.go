package judge

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/random"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// failuresOf converts a case's error to records, and counts the failures that it left out.
func failuresOf(err error) (list []report.Failure, more int) {
	var step *cases.StepError
	var flows *testbed.FlowErrors
	if !errors.As(err, &flows) {
		seen := err.Error()
		var logged interface{ Log() string }
		if errors.As(err, &logged) {
			seen += "\nIts last lines:\n" + logged.Log()
		}
		return []report.Failure{{Seen: seen}}, 0
	}
	for _, e := range flows.List {
		f := report.Failure{Seen: e.Error()}
		var flow *testbed.FlowError
		if errors.As(e, &flow) {
			from, to, _ := strings.Cut(flow.About, " to ")
			f = evidence.Compare(from, to, flow.Out, flow.Seen.Observation, hostAt)
			f.Seen = flow.What()
		}
		if errors.As(err, &step) {
			f.Step = step.Step
		} else if before, found := strings.CutSuffix(err.Error(), flows.Error()); found {
			f.Step = strings.TrimSuffix(strings.TrimSpace(before), ":")
		}
		list = append(list, f)
	}
	return list, flows.More
}

// hostAt returns the name of the host with this address, or "".
func hostAt(a netip.Addr) string {
	for _, p := range network.Hosts() {
		if p.V4 == a || p.V6 == a {
			return p.Name
		}
	}
	return ""
}

// firstFlow returns the first failed flow, or nil if the error is about something else.
func firstFlow(err error) *testbed.FlowError {
	var flows *testbed.FlowErrors
	if errors.As(err, &flows) {
		for _, e := range flows.List {
			var flow *testbed.FlowError
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
	if len(r.Failures) == 0 || b.Cluster == nil {
		return
	}
	var objects []metav1.Object
	for _, o := range b.Program.Wanted {
		if !slices.Contains(b.Program.Always, o) {
			objects = append(objects, o)
		}
	}
	if flow := firstFlow(err); reduce && flow != nil && b.Sink != nil && !isProgramError(err) {
		began := time.Now()
		if small := shrunk(ctx, b, flow); small != nil && l.machine.Busy(began) == "" {
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
func shrunk(ctx context.Context, b *testbed.Testbed, flow *testbed.FlowError) []metav1.Object {
	ctx, cancel := context.WithTimeout(ctx, 2*programShrinkTime)
	defer cancel()
	state := random.Script{Setup: b.Setup, Steps: []random.Step{{Services: slices.Clone(b.Services)}}}
	for i, svc := range b.Services {
		state.Steps[0].Services[i] = svc.WithDefaults(i)
	}
	brief := *b
	brief.Program = nil
	brief.Timeouts.Answer = min(b.Timeouts.Answer, time.Second)
	until := time.Now().Add(programShrinkTime)
	fails := func(sc random.Script) bool {
		if time.Now().After(until) || b.Put(ctx, sc.Steps[0].Services...) != nil {
			return false
		}
		// A late result is not wrong: the failure must last.
		for range 2 {
			brief.Described = b.Described
			list, err := brief.Expect(slices.Repeat([]network.Attempt{flow.Attempt}, 4))
			if err != nil {
				return false
			}
			for i := range list {
				list[i].AnySource = flow.AnySource
				if flow.Out.AlsoAllowed == nil {
					list[i].Out.AlsoAllowed = nil
				}
			}
			if brief.Verify(ctx, list) == nil {
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
	small := random.Shrink(state, fails, programShrinkTries)
	objects, err := cluster.Objects(small.Steps[0].Services, b.Program.Families)
	if err != nil {
		return nil
	}
	return objects
}
