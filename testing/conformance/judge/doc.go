// Package judge tests service proxies that are programs, through the objects of an API server: the cases and the oracle
// are those of package conformance, but the judge has to find out when the program has applied a change, and does not
// judge what goes wrong on a machine that other programs keep too busy. [Run] tries the cases, [Compare] runs two
// programs side by side.
//
//	r, err := judge.Run(ctx, program.Proxy{Open: open, Configures: true}, judge.Options{})
//
// Package program has the types with which a caller describes a program. The result is a report, see package report.
// cmd/judge is the command for both. For a backend that is a Go package, conformance.Test is enough.
package judge
