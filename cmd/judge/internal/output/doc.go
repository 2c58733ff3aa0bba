// Package output writes reports as an HTML page, as JUnit XML and as text.
//
// All output is valid and free of control characters, whatever a program has printed. Writers do not change the report,
// and return an error for a report that [report.Read] would reject.
package output
