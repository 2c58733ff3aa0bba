package main

import (
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// fromOwnTests returns a report of Kubernetes' own tests as one of this program, with a result for each test. It fails
// if that does not name the tests that passed.
func fromOwnTests(r *owntests.Report) (*report.Report, error) {
	if len(r.PassedTests) != r.Passed {
		return nil, fmt.Errorf("the report of %s %s, %s, names %d of the %d tests that passed: run them again",
			r.Tested.Name, r.Tested.Version, r.Tested.Mode, len(r.PassedTests), r.Passed)
	}
	command := r.Tested.Command
	if r.Tested.Beside != "" {
		command += "\n# beside it: " + r.Tested.Beside
	}
	out := &report.Report{
		Implementation: report.Implementation{Name: r.Tested.Name, Version: r.Tested.Version, Mode: r.Tested.Mode,
			Command: command},
		Kernel: r.Kernel,
		Suite:  fmt.Sprintf("Kubernetes %s, %d nodes, %s", r.Kubernetes, r.Nodes, r.Started.Format(time.DateOnly)),
	}
	add := func(test string, verdict report.Verdict, why string, failures ...report.Failure) {
		out.Results = append(out.Results, report.Result{Case: test, Profile: report.Kubernetes, Verdict: verdict, Why: why,
			Failures: failures})
	}
	for _, test := range r.PassedTests {
		add(test, report.Passed, "")
	}
	for _, s := range r.Skipped {
		add(s.Test, report.NotRun, "it skipped itself: "+s.Reason)
	}
	for _, f := range r.Failures {
		verdict, why := report.Failed, "it failed also when it ran once more, alone"
		switch f.Again {
		case "passed":
			verdict, why = report.NotJudged, "it passed when it ran once more, alone"
		case "failed":
		default:
			why = "how it ends alone is not known: " + f.Again
		}
		add(f.Test, verdict, why, report.Failure{Seen: f.Message})
	}
	return out, nil
}
