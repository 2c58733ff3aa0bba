package e2e

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// result is the outcome of one test: "passed", "failed", "skipped", or "" if the test was not selected.
type result struct{ test, outcome, message string }

// readResults reads a report in JUnit's format, as ginkgo writes it.
func readResults(path string) ([]result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
			Failure *struct {
				Message string `xml:"message,attr"`
			} `xml:"failure"`
			Error *struct {
				Message string `xml:"message,attr"`
			} `xml:"error"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var out []result
	for _, c := range all.Cases {
		name, isTest := strings.CutPrefix(c.Name, "[It] ")
		r := result{test: name, outcome: "passed"}
		switch {
		case c.Failure != nil:
			r.outcome, r.message = "failed", c.Failure.Message
		case c.Error != nil:
			r.outcome, r.message = "failed", c.Error.Message
		case c.Skipped != nil && c.Skipped.Message == "skipped":
			r.outcome = "" // not selected by its name
		case c.Skipped != nil:
			r.outcome, r.message = "skipped", strings.TrimPrefix(c.Skipped.Message, "skipped - ")
		}
		if !isTest && r.outcome != "failed" {
			continue // not a test, but what runs before or after them
		}
		out = append(out, r)
	}
	return out, nil
}

// addTo adds results to a report.
func addTo(r *owntests.Report, results []result) {
	for _, t := range results {
		message, _, _ := strings.Cut(strings.TrimSpace(t.message), "\n")
		switch t.outcome {
		case "passed":
			r.Passed++
			r.PassedTests = append(r.PassedTests, t.test)
		case "skipped":
			r.Skipped = append(r.Skipped, owntests.Skipped{Test: t.test, Reason: message})
		case "failed":
			r.Failures = append(r.Failures, owntests.Failure{Test: t.test, Message: message})
		default:
			continue
		}
		r.Selected++
	}
	slices.Sort(r.PassedTests)
	slices.SortFunc(r.Skipped, func(a, b owntests.Skipped) int { return strings.Compare(a.Test, b.Test) })
	slices.SortFunc(r.Failures, func(a, b owntests.Failure) int { return strings.Compare(a.Test, b.Test) })
}
