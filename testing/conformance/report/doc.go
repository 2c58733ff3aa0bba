// Package report is what a run of the conformance suite against a program leaves behind: plain data, and its writers.
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
// A [Report] says what was tested and where, and has one [Result] for each case. A case belongs to a [Profile]: what
// every service proxy must do, a named feature that it may lack, or a note, which counts for nothing. A failed result
// has [Failure]s: the flow, what was seen, what should have happened and by which rules, the path of the packet, and
// the objects of the cluster as YAML that kubectl apply takes.
//
// # Writers
//
//   - [WriteYAML] writes what is committed and compared, and [Read] reads it. Two runs with the same results write the
//     same bytes: results are sorted, and there are no times, except in the figures of [Speed].
//   - [WriteJUnit] writes XML for CI systems, with the times.
//   - [WriteHTML] writes a page to look at, from one report or from several.
//   - [WriteText] writes a summary for a terminal.
//
// # What it guarantees
//
// Whatever a program has printed, and whatever an object is called, every writer writes valid text: [Clean] replaces
// what is not UTF-8 and shows control characters as escapes, so that a name cannot drive a terminal. Writers do not
// change the report. The functions may be called concurrently.
//
// # What it does not do
//
// It runs nothing and does not judge: the verdicts come from the suite.
package report
