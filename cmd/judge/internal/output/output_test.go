package output

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// example is a report with every verdict, in the order of reports.
func example(t *testing.T) *report.Report {
	t.Helper()
	text, err := os.ReadFile("../../../../testing/conformance/report/testdata/example.yaml")
	require.NoError(t, err)
	r, err := report.Read(text)
	require.NoError(t, err)
	passed := slices.IndexFunc(r.Results, func(r report.Result) bool { return r.Verdict == report.Passed })
	r.Results[passed].Elapsed = 1500 * time.Millisecond
	r.Suite = report.SuiteVersion
	return r
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Text(&b, example(t), true))
	fm.Golden(t, "testdata/example.txt", b.String())
}

// The summary says what is known of the features of Kubernetes, and how many there are of which nothing is.
func TestTextHasTheFeatures(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Text(&b, withFeatures(t), false))
	for _, want := range []string{"  yes       SCTP (KEP-614)\n",
		"  no        sessionAffinity: timeoutSeconds\n            not right: session affinity expires\n",
		"(KEP-2433, KEP-4444, KEP-3015)\n"} {
		assert.Contains(t, b.String(), want)
	}
	assert.Contains(t, b.String(), fmt.Sprintf("not known: %d more", len(report.ServiceFeatures())-3))
	b.Reset()
	require.NoError(t, Text(&b, example(t), false))
	assert.NotContains(t, b.String(), "Features of Kubernetes", "nothing is known")
}

// A report of an older suite says so, on both.
func TestAnOlderSuiteIsMarked(t *testing.T) {
	r := example(t)
	r.Suite = "0.1"
	var b bytes.Buffer
	require.NoError(t, Text(&b, r, false))
	assert.Contains(t, b.String(), "of an older suite: version "+report.SuiteVersion+" has ")
	assert.Contains(t, asHTML(t, r), "of an older suite: version "+report.SuiteVersion+" has ")
	r.Suite = report.SuiteVersion
	assert.NotContains(t, asHTML(t, r), "of an older suite")
}

func TestJUnit(t *testing.T) {
	r := example(t)
	r.Problem, r.Log = "the program exited", "panic: \x1b[1mno\x00"
	r.Results = append(r.Results, report.Result{Case: "a note that fails", Profile: report.Note, Verdict: report.Failed})
	var b bytes.Buffer
	require.NoError(t, JUnit(&b, r))
	fm.Golden(t, "testdata/example.xml", b.String())
}

func TestWritersRefuseWhatReadWould(t *testing.T) {
	r := example(t)
	r.Results = append(r.Results, r.Results[0])
	assert.ErrorContains(t, JUnit(io.Discard, r), "two results")
	assert.ErrorContains(t, HTML(io.Discard, r), "two results")
	assert.ErrorContains(t, Text(io.Discard, r, true), "two results")
}

// evil is what a program may print, or an object be called.
func evil() []string {
	return []string{
		"", "\x00\x01\x1b[31mred\x1b[0m\a\b", "\xff\xfe not UTF-8 \xc3", "a\r\nb\rc", "]]> &amp; <script>alert(1)</script>",
		"\ufeff\ufffe\uffff", "\u202egpj.exe", "\u2028\u2029\u0085", " leading", "trailing \n\n", "\t", "'\"`$(x)", "{{.}}",
		strings.Repeat("long ", 3000), "emoji 🐳 日本",
	}
}

// everywhere returns a report that has a text wherever it can.
func everywhere(text string) *report.Report {
	return &report.Report{
		Implementation: report.Implementation{Name: text, Version: text, Mode: text, URL: text, Command: text},
		Kernel:         text, Suite: text, Problem: text, Log: text,
		Results: []report.Result{{Case: text, Rules: []string{text}, Profile: report.Extended, Feature: "f" + text,
			Verdict: report.Failed, Why: text, Ruleset: text, Failures: []report.Failure{{Step: text, Seen: text,
				Flow:    &report.Flow{From: text, To: text, Source: text, Destination: text, Protocol: text},
				Want:    []report.Outcome{{What: text, Reasons: []report.Reason{{Text: text, Rule: text}}}},
				Path:    []report.Hop{{At: text, Text: text, Wrong: true}},
				Objects: text}}}},
	}
}

func TestWhateverAProgramPrints(t *testing.T) {
	for _, text := range evil() {
		checkWriters(t, text)
	}
}

func FuzzWriters(f *testing.F) {
	for _, text := range evil() {
		f.Add(text)
	}
	f.Fuzz(checkWriters)
}

func checkWriters(t *testing.T, text string) {
	r := everywhere(text)

	var junit bytes.Buffer
	require.NoError(t, JUnit(&junit, r))
	for d := xml.NewDecoder(&junit); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}

	var terminal bytes.Buffer
	require.NoError(t, Text(&terminal, r, true))
	assert.True(t, utf8.Valid(terminal.Bytes()))
	for _, c := range terminal.String() {
		require.False(t, unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Bidi_Control, c), "%U", c)
	}
}
