// Package report has the report of a run of the conformance suite against a program: plain data, in YAML.
//
//	r := &report.Report{
//		Implementation: report.Implementation{Name: "example-proxy", Version: "1.2.3", Mode: "nftables"},
//		Kernel:         "6.1.0",
//		Suite:          "0.1",
//		Results:        results,
//	}
//	err := report.WriteYAML(file, r)
//
// # What it has
//
// A [Report] says what was tested and where, and has a [Result] for each case. A case belongs to a [Profile]: what
// every service proxy must do, a named feature that it may lack, or a note, which never counts as a failure. A failed
// result has [Failure]s: the flow, the observed result, the expected outcomes with their rules, the packet's path, and
// the cluster's objects as YAML for kubectl apply.
//
// [WriteYAML] writes reports that are committed and compared; [Read] reads them. Equal results produce equal bytes,
// except for the load of the [Machine] and the figures of [Speed]. [Merge] merges the reports of a program's runs, each
// with some of the cases. cmd/judge also writes reports as HTML, JUnit XML and text.
//
// # What it guarantees
//
// The YAML is valid whatever a program prints and whatever its objects are called. [Clean] replaces invalid UTF-8 and
// escapes control characters, so that no name can control a terminal. The functions may be called concurrently, and do
// not modify the report that they write.
//
// # What it does not do
//
// It runs nothing and judges nothing: the suite determines the verdicts.
package report
