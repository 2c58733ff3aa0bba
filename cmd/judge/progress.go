package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// progress returns a function that prints each result.
func (o *options) progress(out io.Writer, began time.Time) func(report.Result, int) {
	done := 0
	return func(r report.Result, of int) {
		done++
		if r.Why == "it was not selected" {
			return
		}
		fmt.Fprintf(out, "%7.1fs %3d/%d  %-11s %s%s\n", time.Since(began).Seconds(), done, of, r.Verdict, r.Case, about(r))
		if o.verbose {
			printFailures(out, r)
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

func printFailures(out io.Writer, r report.Result) {
	for _, f := range r.Failures {
		var b strings.Builder
		if f.Step != "" {
			fmt.Fprintf(&b, "%s\n", f.Step)
		}
		if f.Flow != nil {
			fmt.Fprintf(&b, "flow: %v\n", f.Flow)
		}
		fmt.Fprintf(&b, "seen: %s\n", f.Seen)
		for _, w := range f.Want {
			fmt.Fprintf(&b, "want: %s\n", w.What)
			for _, reason := range w.Reasons {
				fmt.Fprintf(&b, "    %v\n", reason)
			}
		}
		if f.Objects != "" {
			fmt.Fprintf(&b, "with these objects:\n%s", f.Objects)
		}
		text := strings.TrimRight(report.Clean(b.String()), "\n")
		fmt.Fprintf(out, "    %s\n\n", strings.ReplaceAll(text, "\n", "\n    "))
	}
}
