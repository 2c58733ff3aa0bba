package report_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func asYAML(t *testing.T, r *report.Report) string {
	var b bytes.Buffer
	require.NoError(t, report.WriteYAML(&b, r))
	return b.String()
}

func TestYAML(t *testing.T) {
	fm.Golden(t, "testdata/example.yaml", asYAML(t, example()))
}

func TestYAMLDependsOnTheResultsAlone(t *testing.T) {
	want := asYAML(t, example())
	other := example()
	slices.Reverse(other.Results)
	before := slices.Clone(other.Results)
	for i := range other.Results {
		other.Results[i].Elapsed += time.Hour
		other.Results[i].Ruleset = "counter packets 17"
	}
	assert.Equal(t, want, asYAML(t, other))
	for i := range before {
		assert.Equal(t, before[i].Case, other.Results[i].Case, "the report itself stays as it is")
	}
}

func TestReadReturnsWhatWasWritten(t *testing.T) {
	r := example()
	r.Seed = math.MaxUint64
	r.Problem, r.Log = "the program exited", "fatal: \"no\"\n\ttabs: yes\n"
	r.Speed = &report.Speed{Machine: "2 cores", Runs: []report.SpeedRun{
		{Services: 100, Endpoints: 3, Start: 12.5, Change: report.Latency{P50: 1, P99: 2.25, Count: 40, CPU: 7, Gap: 0.5},
			Churn: report.Latency{P50: 3, P99: 4, Count: 100}, Memory: 1 << 40, Problem: "it exited"},
		{Services: 1000, Endpoints: 10, Probing: "SYNs",
			Burst: report.Latency{P50: 1, P99: 2, Count: 3, Quantiles: report.Quantiles{0.5, 1, 2},
				Judge: &report.Judge{P50: 1}},
			Rates: []report.Rate{{PerSecond: 1000, Latency: report.Latency{P50: 5, P99: 6, Count: 40},
				Written: 10_000, Probed: 500,
				Replaced: 3, Late: 1.5, Listing: &report.Listing{Command: "nft list ruleset", Time: 60_000, Unfinished: true,
					Changes: report.Latency{P50: 5, P99: 9, Count: 40}}}},
			Listing: &report.Listing{Command: "nft list ruleset", Time: 12, Bytes: 1 << 20}}}}
	text := asYAML(t, r)
	got, err := report.Read([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, text, asYAML(t, got))
	assert.Equal(t, uint64(math.MaxUint64), got.Seed)
	assert.Equal(t, r.Log, got.Log)
	assert.Equal(t, r.Speed, got.Speed)
}

// A report of an earlier judge has figures of ten changes a second, without their distribution.
func TestRatesOfARun(t *testing.T) {
	run := report.SpeedRun{Churn: report.Latency{P50: 3, Count: 99}}
	assert.Equal(t, &report.Rate{PerSecond: 10, Latency: run.Churn}, run.PerSecond(10))
	assert.Nil(t, run.PerSecond(100))
	run.Rates = []report.Rate{{PerSecond: 100}, {PerSecond: 10, Written: 100}}
	assert.Equal(t, 100, run.PerSecond(10).Written)
	assert.Equal(t, 100, run.PerSecond(100).PerSecond)
	assert.Nil(t, new(report.SpeedRun).PerSecond(10))
}

func TestReadRefuses(t *testing.T) {
	good := asYAML(t, example())
	_, err := report.Read([]byte(good))
	require.NoError(t, err)
	for name, replace := range map[string][2]string{
		"another kind":                  {"kind: ServiceProxyReport", "kind: Report"},
		"another version":               {"/v1alpha1", "/v9"},
		"an unknown field":              {"\nkernel:", "\nkernal:"},
		"an unknown verdict":            {"verdict: slow", "verdict: fast"},
		"an unknown profile":            {"profile: note", "profile: footnote"},
		"a result changed by hand":      {"verdict: failed", "verdict: passed"},
		"a count changed by hand":       {"failed: 1", "failed: 0"},
		"a feature claimed by hand":     {"- SessionAffinity", "- SCTP"},
		"a case twice":                  {"case: SCTP is served", "case: affinity ends after its timeout"},
		"core with a feature":           {"profile: core", "profile: core\n  feature: X"},
		"an extended case without one":  {"feature: SCTP", "feature: \"\""},
		"a damaged file":                {"results:", "results: {"},
		"a conclusion changed by hand":  {"result: failure", "result: success"},
		"no conclusion for one profile": {"name: note", "name: core"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(good, replace[0], replace[1], 1)
			require.NotEqual(t, good, bad)
			_, err := report.Read([]byte(bad))
			require.Error(t, err)
		})
	}
	_, err = report.Read(nil)
	require.Error(t, err)
}

func TestTheWriterRefusesWhatReadWould(t *testing.T) {
	r := example()
	r.Results = append(r.Results, r.Results[0])
	assert.ErrorContains(t, report.WriteYAML(io.Discard, r), "two results")
}

func TestConclusion(t *testing.T) {
	result := func(p report.Profile, v report.Verdict) report.Result {
		return report.Result{Case: string(p) + string(v), Profile: p, Verdict: v}
	}
	for _, tt := range []struct {
		profile  report.Profile
		verdicts []report.Verdict
		problem  string
		want     string
	}{
		{report.Core, []report.Verdict{report.Passed, report.Slow}, "", "success"},
		{report.Core, []report.Verdict{report.Passed, report.Failed, report.NotRun}, "", "failure"},
		{report.Core, []report.Verdict{report.Passed, report.NotRun}, "", "partial"},
		{report.Core, []report.Verdict{report.Passed, report.NotJudged}, "", "partial"},
		{report.Core, []report.Verdict{report.Failed, report.NotJudged}, "", "failure"},
		{report.Core, []report.Verdict{report.Passed, report.Unsupported}, "", "partial"},
		{report.Core, []report.Verdict{report.Passed}, "it exited", "failure"},
		{report.Extended, []report.Verdict{report.Passed, report.Unsupported}, "", "success"},
		{report.Extended, []report.Verdict{report.Passed, report.Failed}, "", "failure"},
		{report.Note, []report.Verdict{report.Passed, report.Failed}, "", "success"},
		{report.Note, []report.Verdict{report.Passed}, "it exited", "partial"},
	} {
		r := &report.Report{Problem: tt.problem}
		for _, v := range tt.verdicts {
			r.Results = append(r.Results, result(tt.profile, v))
		}
		assert.Equal(t, tt.want, r.Conclusion(tt.profile), "%v", tt)
	}
}

func TestFeatures(t *testing.T) {
	r := &report.Report{}
	for feature, verdicts := range map[string][]report.Verdict{
		"works":      {report.Passed, report.Slow, report.NotRun},
		"fails":      {report.Passed, report.Failed, report.Unsupported},
		"lacks":      {report.Unsupported, report.Passed},
		"not tried":  {report.NotRun},
		"unknown":    {report.Passed, report.NotJudged},
		"unknown 2":  {report.Unsupported, report.NotJudged},
		"fails, too": {report.Failed, report.NotJudged},
		"works late": {report.Slow},
	} {
		for _, v := range verdicts {
			r.Results = append(r.Results, report.Result{Profile: report.Extended, Feature: feature, Verdict: v})
		}
	}
	r.Results = append(r.Results, report.Result{Profile: report.Core, Verdict: report.Failed})
	supported, failed, unsupported := r.Features()
	assert.Equal(t, []string{"works", "works late"}, supported)
	assert.Equal(t, []string{"fails", "fails, too"}, failed)
	assert.Equal(t, []string{"lacks"}, unsupported)
}

// hostile returns output of a program, or names of objects, that a report must survive.
func hostile() []string {
	return []string{
		"", "\x00\x01\x1b[31mred\x1b[0m\a\b", "\xff\xfe not UTF-8 \xc3", "a\r\nb\rc", "]]> &amp; <script>alert(1)</script>",
		"\ufeff\ufffe\uffff", "\u202egpj.exe", "\u2028\u2029\u0085", "- a: [\n---\n...\n%YAML", "# no comment", " leading",
		"trailing \n\n", "\t", "'\"`$(x)", "1", "null", "true", "~", "{{.}}", strings.Repeat("long ", 3000), "emoji 🐳 日本",
	}
}

// everywhere returns a report with a text in every field.
func everywhere(text string) *report.Report {
	return &report.Report{
		Implementation: report.Implementation{Name: text, Version: text, Mode: text, URL: text, Command: text},
		Kernel:         text, Suite: text, Problem: text, Log: text, Machine: &report.Machine{},
		Results: []report.Result{{Case: text, Rules: []string{text}, Profile: report.Extended, Feature: "f" + text,
			Verdict: report.Failed, Why: text, Ruleset: text, Failures: []report.Failure{{Step: text, Seen: text,
				Flow:    &report.Flow{From: text, To: text, Source: text, Destination: text, Protocol: text},
				Want:    []report.Outcome{{What: text, Reasons: []report.Reason{{Text: text, Rule: text}}}},
				Path:    []report.Hop{{At: text, Text: text, Wrong: true}},
				Objects: text}}}},
	}
}

func TestWhateverAProgramPrints(t *testing.T) {
	for _, text := range hostile() {
		checkYAML(t, text)
	}
}

func FuzzYAML(f *testing.F) {
	for _, text := range hostile() {
		f.Add(text)
	}
	f.Fuzz(checkYAML)
}

func checkYAML(t *testing.T, text string) {
	yaml := asYAML(t, everywhere(text))
	got, err := report.Read([]byte(yaml))
	require.NoError(t, err)
	assert.Equal(t, yaml, asYAML(t, got))
	assert.Equal(t, report.Clean(text), got.Log)
}

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"as it is: äöü 日本 🐳\n\t": "as it is: äöü 日本 🐳\n\t",
		"\x1b[31m\x00":           `\x1b[31m\x00`,
		"a\r\nb\rc":              "a\nb\\x0dc",
		"\xffa\xc3":              "\ufffda\ufffd",
		"\u0085\u2028\u2029":     `\x85\u2028\u2029`,
		"\u202eexe.gpj":          `\u202eexe.gpj`,
		"\ufeff\uffff":           `\ufeff\uffff`,
	} {
		assert.Equal(t, want, report.Clean(text))
	}
}

func TestQuantilesAreOneText(t *testing.T) {
	text, err := json.Marshal(report.Quantiles{0.1, 2, 1e6})
	require.NoError(t, err)
	assert.Equal(t, `"0.1 2 1e+06"`, string(text))
	var q report.Quantiles
	require.NoError(t, json.Unmarshal(text, &q))
	assert.Equal(t, report.Quantiles{0.1, 2, 1e6}, q)
	for _, bad := range []string{`"1 NaN"`, `"-1"`, `"Inf"`, `"x"`, `"2 1"`, `[1]`,
		`"` + strings.Repeat("1 ", 1001) + `"`} {
		assert.Error(t, json.Unmarshal([]byte(bad), &q), bad)
	}
}
