package report

import (
	_ "embed" // cases.txt
	"slices"
	"strings"
)

// SuiteVersion is the version of the suite's cases. It is incremented when cases are added that reports of the previous
// version lack.
const SuiteVersion = "0.4"

//go:embed cases.txt
var caseNames string

// SuiteCases returns the names of the cases for programs, sorted.
func SuiteCases() []string { return strings.Split(strings.TrimSpace(caseNames), "\n") }

// Newer returns the cases that were added to the suite after the version of a report: those without a result in it.
func (r *Report) Newer() []string {
	if r.Suite == SuiteVersion || r.Beside != nil {
		return nil
	}
	return slices.DeleteFunc(SuiteCases(), func(name string) bool {
		return slices.ContainsFunc(r.Results, func(result Result) bool { return result.Case == name })
	})
}
