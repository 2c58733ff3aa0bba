package report_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// supportOf returns what a report with these verdicts says about a feature.
func supportOf(f report.ServiceFeature, verdicts ...report.Verdict) report.Support {
	r := &report.Report{}
	for i, v := range verdicts {
		if v != "" {
			r.Results = append(r.Results, report.Result{Case: f.Cases[i], Profile: report.Core, Verdict: v})
		}
	}
	list := r.Support()
	return list[slices.IndexFunc(list, func(s report.Support) bool { return s.Name == f.Name })]
}

func TestSupport(t *testing.T) {
	const none report.Verdict = "" // the report has no such case
	features := report.ServiceFeatures()
	three := features[slices.IndexFunc(features, func(f report.ServiceFeature) bool { return len(f.Cases) == 3 })]
	for _, tt := range []struct {
		verdicts [3]report.Verdict
		want     report.Answer
		wrong    int
	}{
		{[3]report.Verdict{report.Passed, report.Slow, report.Passed}, report.Yes, 0},
		{[3]report.Verdict{report.Passed, report.Passed, report.Failed}, report.InPart, 1},
		{[3]report.Verdict{report.Slow, report.Unsupported, none}, report.InPart, 1},
		{[3]report.Verdict{report.Failed, report.Failed, report.Failed}, report.No, 3},
		{[3]report.Verdict{report.Unsupported, report.Unsupported, report.Unsupported}, report.No, 3},
		{[3]report.Verdict{report.Failed, report.NotRun, none}, report.No, 1},
		{[3]report.Verdict{report.Passed, report.Passed, none}, report.NotKnown, 0},
		{[3]report.Verdict{report.Passed, report.Passed, report.NotRun}, report.NotKnown, 0},
		{[3]report.Verdict{report.Passed, report.Passed, report.NotJudged}, report.NotKnown, 0},
		{[3]report.Verdict{none, none, none}, report.NotKnown, 0},
	} {
		s := supportOf(three, tt.verdicts[:]...)
		assert.Equal(t, tt.want, s.Answer, "%v", tt.verdicts)
		assert.Len(t, s.Wrong, tt.wrong, "%v", tt.verdicts)
		assert.Len(t, slices.Concat(s.Right, s.Wrong, s.Unknown), 3)
	}
}

// A report without verdicts says nothing about features.
func TestNothingIsKnownWithoutVerdicts(t *testing.T) {
	for _, s := range new(report.Report).Support() {
		assert.Equal(t, report.NotKnown, s.Answer, s.Name)
		assert.NotEmpty(t, s.Unknown, "%s has no case", s.Name)
	}
}

// A report of an earlier suite lacks the cases that came since. One of this suite lacks none, even if it has only some.
func TestNewerCases(t *testing.T) {
	names := report.SuiteCases()
	r := &report.Report{Suite: "0.1", Results: []report.Result{{Case: names[0]}, {Case: "a case that was dropped"}}}
	assert.Equal(t, names[1:], r.Newer())
	r.Suite = report.SuiteVersion
	assert.Empty(t, r.Newer())
	assert.Empty(t, (&report.Report{Suite: "0.1", Beside: &report.Implementation{}}).Newer())
}
