package report

import (
	_ "embed" // cases.txt
	"slices"
	"strings"
)

// SuiteVersion is the version of the suite's cases. It goes up when cases come that reports of the version before lack.
const SuiteVersion = "0.2"

//go:embed cases.txt
var caseNames string

// SuiteCases returns the names of the cases that a program is tried with, sorted.
func SuiteCases() []string { return strings.Split(strings.TrimSpace(caseNames), "\n") }

// Newer returns the cases of the suite that came after a report: a report of an earlier version has no result of them.
func (r *Report) Newer() []string {
	if r.Suite == SuiteVersion || r.Beside != nil {
		return nil
	}
	return slices.DeleteFunc(SuiteCases(), func(name string) bool {
		return slices.ContainsFunc(r.Results, func(result Result) bool { return result.Case == name })
	})
}
