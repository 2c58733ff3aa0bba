package main

import (
	"fmt"
	"io"
	"time"

	"sigs.k8s.io/kube-proxy-lib/cmd/judge/internal/output"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// progress returns a function that prints each result.
func (o *options) progress(out io.Writer, began time.Time) func(report.Result, int) {
	done := 0
	return func(r report.Result, of int) {
		done++
		if r.Why == "it was not selected" || r.Why == "the run ended early" { // the summary counts these
			return
		}
		fmt.Fprintf(out, "%7.1fs %3d/%d  %-11s %s%s\n", time.Since(began).Seconds(), done, of, r.Verdict, r.Case, about(r))
		if o.verbose {
			r.Ruleset = "" // long, and in the report
			fmt.Fprint(out, report.Clean(output.Details(r, "    ")))
		}
	}
}

// about returns the profile of a result in brackets, "" for the core profile.
func about(r report.Result) string {
	switch r.Profile {
	case report.Extended:
		return " (extended: " + r.Feature + ")"
	case report.Note:
		return " (note)"
	}
	return ""
}
