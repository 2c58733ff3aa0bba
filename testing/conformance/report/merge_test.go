package report_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// part is a report of a run of some cases of the same program.
func part(results ...report.Result) *report.Report {
	return &report.Report{Implementation: report.Implementation{Name: "p", Version: "1", Mode: "m", Command: "run"},
		Kernel: "6.1", Suite: "0.1", Results: results}
}

func core(name string, v report.Verdict) report.Result {
	return report.Result{Case: name, Profile: report.Core, Verdict: v}
}

func feature(name string, v report.Verdict, why string) report.Result {
	return report.Result{Case: name, Profile: report.Extended, Feature: "F", Verdict: v, Why: why}
}

func TestPartsOfARunAreMerged(t *testing.T) {
	first := part(core("a", report.Passed), core("b", report.NotRun), core("c", report.NotRun),
		feature("d", report.Unsupported, "none of its cases passed"), feature("e", report.NotRun, ""),
		core("f", report.NotJudged), core("g", report.Passed), core("h", report.NotJudged))
	second := part(core("a", report.NotRun), core("b", report.Failed), core("c", report.NotRun),
		feature("d", report.NotRun, ""), feature("e", report.Slow, "late"),
		core("f", report.Failed), core("g", report.NotJudged), core("h", report.NotRun))
	second.Machine = &report.Machine{Others: 60}
	second.Implementation.Command = "run the rest"
	r, err := report.Merge(first, second)
	require.NoError(t, err)
	assert.Equal(t, []report.Result{core("a", report.Passed), core("b", report.Failed), core("c", report.NotRun),
		feature("d", report.Failed, "it did not happen as it should"), feature("e", report.Slow, "late"),
		core("f", report.Failed), core("g", report.Passed), core("h", report.NotJudged)}, r.Results,
		"the other run showed that the proxy has the feature")
	assert.Equal(t, 60, r.Machine.Others)
	assert.Equal(t, "run\nrun the rest", r.Implementation.Command)
	assert.Equal(t, report.Unsupported, first.Results[3].Verdict, "what is merged stays as it is")
}

// A case that was to be run is still missing after a run of others.
func TestAnInterruptedCaseStaysInterrupted(t *testing.T) {
	interrupted := core("a", report.NotRun)
	interrupted.Why, interrupted.Interrupted = "the run ended early", true
	of, others := part(interrupted, core("b", report.NotRun)), part(core("a", report.NotRun), core("b", report.Passed))
	var text bytes.Buffer
	require.NoError(t, report.WriteYAML(&text, of))
	of, err := report.Read(text.Bytes())
	require.NoError(t, err)
	for _, parts := range [][]*report.Report{{of, others}, {others, of}} {
		r, err := report.Merge(parts...)
		require.NoError(t, err)
		assert.Equal(t, []report.Result{interrupted, core("b", report.Passed)}, r.Results)
		r, err = report.Merge(append(parts, part(core("a", report.Passed)))...)
		require.NoError(t, err)
		assert.Equal(t, core("a", report.Passed), r.Results[0])
	}
}

func TestWhatIsNoPartOfARunIsNotMerged(t *testing.T) {
	for want, change := range map[string]func(*report.Report){
		"different programs":   func(r *report.Report) { r.Implementation.Version = "2" },
		"kernel":               func(r *report.Report) { r.Kernel = "6.2" },
		"suite":                func(r *report.Report) { r.Suite = "0.2" },
		"comparisons":          func(r *report.Report) { r.Beside = &report.Implementation{} },
		"ended early: it died": func(r *report.Report) { r.Problem = "it died" },
		`"a" was run twice`:    func(r *report.Report) { r.Results[0].Verdict = report.Failed },
	} {
		other := part(core("a", report.NotRun), core("b", report.Passed))
		change(other)
		_, err := report.Merge(part(core("a", report.Passed), core("b", report.NotRun)), other)
		assert.ErrorContains(t, err, want)
	}
	for _, results := range [][]report.Verdict{{report.Passed, report.Unsupported}, {report.Unsupported, report.Passed}} {
		_, err := report.Merge(part(feature("a", results[0], "why")), part(feature("a", results[1], "why")))
		assert.ErrorContains(t, err, `"a" was run twice`, "%v", results)
	}
	_, err := report.Merge()
	assert.Error(t, err)
}
