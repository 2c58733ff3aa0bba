package report

import (
	"encoding/xml"
	"io"
	"strconv"
	"strings"
	"time"
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

// WriteJUnit writes a report as JUnit XML: a suite for each profile that has cases, with a test case for each. What is
// unsupported or was not run is skipped, and so is a note that failed: notes are never failures. A run that ended early
// has the problem as an error of a case of its own.
func WriteJUnit(w io.Writer, r *Report) error {
	r = r.cleaned()
	if err := r.validate(); err != nil {
		return err
	}
	var suites junitSuites
	for _, p := range Profiles() {
		if r.Counts(p).Total() > 0 {
			suites.Suites = append(suites.Suites, r.junitSuite(p))
		}
	}
	if r.Problem != "" {
		suites.Suites = append(suites.Suites, junitSuite{Name: "run", Tests: 1, Errors: 1, Time: seconds(0),
			Properties: r.junitProperties(), Cases: []junitCase{{Name: "the run is complete", Class: "run", Time: seconds(0),
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
	_, err := io.WriteString(w, "\n")
	return err
}

func (r *Report) junitProperties() []junitProperty {
	list := []junitProperty{
		{"implementation", oneLine(r.Implementation.Name)},
		{"version", oneLine(r.Implementation.Version)},
		{"mode", oneLine(r.Implementation.Mode)},
		{"kernel", oneLine(r.Kernel)},
		{"suite", oneLine(r.Suite)},
		{"seed", strconv.FormatUint(r.Seed, 10)},
	}
	if r.Beside != nil {
		list = append(list, junitProperty{"beside", oneLine(r.Beside.String())})
	}
	return list
}

func (r *Report) junitSuite(p Profile) junitSuite {
	s := junitSuite{Name: string(p), Properties: r.junitProperties()}
	var total time.Duration
	for _, result := range r.sorted() {
		if result.Profile != p {
			continue
		}
		c := junitCase{Name: oneLine(result.Case), Class: string(p), Time: seconds(result.Elapsed)}
		if result.Feature != "" {
			c.Class += "." + oneLine(result.Feature)
		}
		message := &junitMessage{Message: oneLine(result.Why), Text: strings.TrimSpace(result.details(""))}
		switch {
		case result.Verdict == Passed:
		case result.Verdict == Slow:
			c.Out = "slow: " + message.Message
		case result.Verdict == Failed && p != Note:
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

// seconds returns a time as JUnit has it.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }
