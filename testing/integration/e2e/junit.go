package e2e

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
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
