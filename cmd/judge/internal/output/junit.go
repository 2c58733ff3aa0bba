package output

import (
	"encoding/xml"
	"io"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",cdata"`
}

// JUnit writes a report as JUnit XML: a suite for each profile with cases, and a test case for each case. Cases that
// are unsupported, not judged or not run are skipped; so are failed notes, which never count as failures. The problem
// of a run that ended early is an error of a separate test case.
func JUnit(w io.Writer, r *report.Report) error {
	r, err := r.Normalized()
	if err != nil {
		return err
	}
	var suites junitSuites
	for _, p := range report.Profiles() {
		if r.Counts(p).Total() > 0 {
			suites.Suites = append(suites.Suites, junitSuiteOf(r, p))
		}
	}
	if r.Problem != "" {
		suites.Suites = append(suites.Suites, junitSuite{Name: "run", Tests: 1, Errors: 1, Time: seconds(0),
			Properties: junitProperties(r), Cases: []junitCase{{Name: "the run is complete", Class: "run", Time: seconds(0),
				Error: &junitMessage{Message: oneLine(r.Problem), Text: r.Log}}}})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(suites); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}

func junitProperties(r *report.Report) []junitProperty {
	list := []junitProperty{
		{"implementation", oneLine(r.Implementation.Name)},
		{"version", oneLine(r.Implementation.Version)},
		{"mode", oneLine(r.Implementation.Mode)},
		{"kernel", oneLine(r.Kernel)},
		{"suite", oneLine(r.Suite)},
		{"seed", strconv.FormatUint(r.Seed, 10)},
		{"command", oneLine(r.Implementation.Command)},
	}
	if r.Machine != nil {
		list = append(list, junitProperty{"machine", r.Machine.String()})
	}
	if r.Beside != nil {
		list = append(list, junitProperty{"beside", oneLine(r.Beside.String())})
	}
	return list
}

func junitSuiteOf(r *report.Report, p report.Profile) junitSuite {
	s := junitSuite{Name: string(p), Properties: junitProperties(r)}
	var total time.Duration
	for _, result := range r.Results {
		if result.Profile != p {
			continue
		}
		c := junitCase{Name: oneLine(result.Case), Class: string(p), Time: seconds(result.Elapsed)}
		if result.Feature != "" {
			c.Class += "." + oneLine(result.Feature)
		}
		message := &junitMessage{Message: oneLine(result.Why), Text: strings.TrimSpace(Details(result, ""))}
		switch {
		case result.Verdict == report.Passed:
		case result.Verdict == report.Slow:
			c.Out = "slow: " + message.Message
		case result.Verdict == report.Failed && p != report.Note:
			c.Failure = message
			s.Failures++
		default:
			c.Skipped = message
			s.Skipped++
		}
		s.Tests++
		s.Cases = append(s.Cases, c)
		total += result.Elapsed
	}
	s.Time = seconds(total)
	return s
}

// seconds formats a duration for JUnit.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }
