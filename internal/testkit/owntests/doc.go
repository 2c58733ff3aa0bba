// Package owntests has the report of a run of Kubernetes' own network tests against a service proxy: plain data, in
// YAML. Package testing/integration/e2e, which is in a module of its own, makes such reports.
//
//	r, err := owntests.Read(text)
//	fmt.Println(r.Summary())
//
// cmd/judge makes pages of them.
//
// # What it guarantees
//
// Reading what was written gives the same report. Nothing here modifies a report, and everything may be called
// concurrently.
//
// # What it does not do
//
// It runs nothing.
package owntests
