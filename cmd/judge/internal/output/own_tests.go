package output

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// OwnTestsHTML writes the page of HTML about one report of Kubernetes' own tests or several side by side.
func OwnTestsHTML(w io.Writer, reports ...*owntests.Report) error {
	p := &page{texts: texts{Title: "Kubernetes’ own tests", Heading: "Kubernetes’ own network tests", Case: "Test",
		Search: "Test", Failed: "failed", Others: "skipped or not known", Results: "Failures",
		Nothing: "Nothing failed, and nothing was skipped."}}
	rows := map[string]*row{}
	for i, r := range reports {
		c := ownTestsCard(r)
		if !r.Comparable(reports[0]) {
			c.Warning = strings.TrimSpace("Other tests than those of the first report, or another Kubernetes. " + c.Warning)
		}
		p.Cards = append(p.Cards, c)
		for n, result := range ownResults(r) {
			of := rows[result.Case]
			if of == nil {
				of = &row{Case: result.Case, Cells: make([]cell, len(reports))}
				rows[result.Case] = of
			}
			if of.Cells[i].Verdict != "" {
				continue // another test of this name
			}
			of.Cells[i] = cell{Verdict: string(result.Verdict), Class: result.Class, Why: result.Why}
			if !strings.Contains(of.Classes+" ", " has-"+result.Class+" ") {
				of.Classes += " has-" + result.Class
			}
			if result.Verdict != report.Passed {
				result.ID = fmt.Sprintf("result-%d-%d", i+1, n+1)
				of.Cells[i].ID = result.ID
				p.Details = append(p.Details, result)
			}
		}
	}
	tests := group{Title: "Tests"}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		tests.Rows = append(tests.Rows, *rows[name])
	}
	p.Groups = []group{tests}
	return p.write(w)
}

// ownTestsTitle names what was tested.
func ownTestsTitle(r *owntests.Report) string {
	tested := report.Implementation{Name: r.Tested.Name, Version: r.Tested.Version, Mode: r.Tested.Mode}
	return report.Clean(tested.String())
}

func ownTestsCard(r *owntests.Report) card {
	title := ownTestsTitle(r)
	c := card{Title: title, Column: title, Command: report.Clean(r.Tested.Command), Facts: [][]fact{
		{{"Kubernetes", r.Kubernetes, ""}, {"nodes", strconv.Itoa(r.Nodes), ""}, {"kernel", report.Clean(r.Kernel), ""},
			{"begun", r.Started.Format(time.DateOnly), ""}},
		{{"tests", report.Clean(r.Suite.Focus), ""}, {"without", report.Clean(r.Suite.Skip), ""}},
		{{Before: fmt.Sprintf("%d tests at a time, %d processors, load average %.1f before and %.1f after, %d minutes",
			r.Suite.Parallel, r.Processors, r.LoadBefore, r.LoadAfter, r.Minutes)}},
	}}
	if r.FeatureGates != "" {
		c.Facts[0] = append(c.Facts[0], fact{"feature gates", report.Clean(r.FeatureGates), ""})
	}
	if r.Tested.Beside != "" {
		c.Command += "\n# beside it: " + report.Clean(r.Tested.Beside)
	}
	if len(r.PassedTests) < r.Passed {
		c.Warning = "It is from before reports named the tests that passed: the matrix has the others alone."
	}
	numbers := []string{fmt.Sprintf("%d passed", r.Passed)}
	for _, kind := range ownKinds() {
		n := 0
		for _, f := range r.Failures {
			if ownKind(f) == kind {
				n++
			}
		}
		if n > 0 {
			numbers = append(numbers, fmt.Sprintf("%d %s", n, kind.verdict))
		}
	}
	if len(r.Skipped) > 0 {
		numbers = append(numbers, fmt.Sprintf("%d skipped", len(r.Skipped)))
	}
	result := "success"
	if len(r.FailedAgain()) > 0 {
		result = "failure"
	}
	c.Counts = []count{{"tests", result, strings.Join(numbers, ", ")}}
	return c
}

// kindOfFailure is how the page shows a test that failed: with a verdict, and the class of a verdict of package report.
type kindOfFailure struct{ verdict, class string }

// ownKinds returns all kinds, the most important first.
func ownKinds() []kindOfFailure {
	return []kindOfFailure{{"failed", "failed"}, {"failed at first", "slow"}, {"not known", "not-judged"}}
}

func ownKind(f owntests.Failure) kindOfFailure {
	kinds := ownKinds()
	switch f.Again {
	case "failed":
		return kinds[0]
	case "passed":
		return kinds[1]
	}
	return kinds[2]
}

// ownResults returns a result for each test that a report names.
func ownResults(r *owntests.Report) (results []detail) {
	add := func(test string, kind kindOfFailure, why string, failures ...report.Failure) {
		results = append(results, detail{Class: kind.class, Title: ownTestsTitle(r), Result: report.Result{
			Case: report.Clean(test), Verdict: report.Verdict(kind.verdict), Why: report.Clean(why), Failures: failures}})
	}
	for _, test := range r.PassedTests {
		add(test, kindOfFailure{"passed", "passed"}, "")
	}
	for _, s := range r.Skipped {
		add(s.Test, kindOfFailure{"skipped", "not-run"}, s.Reason)
	}
	for _, f := range r.Failures {
		add(f.Test, ownKind(f), "When it ran once more, alone: "+f.Again+".", report.Failure{Seen: report.Clean(f.Message)})
	}
	return results
}
