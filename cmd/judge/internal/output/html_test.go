package output

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

func asHTML(t *testing.T, reports ...*report.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, HTML(&b, reports...))
	return b.String()
}

// TestThePageHasTheFeatures: with the cases that are not right, and nothing is claimed without a verdict.
func TestThePageHasTheFeatures(t *testing.T) {
	r := withFeatures(t)
	html := asHTML(t, r)
	for _, want := range []string{`<a href="#features">`, `SCTP <span class="rule">KEP-614</span>`,
		`<td class="yes">yes</td>`,
		`<td class="no">no`, `<td class="not-known">not known</td>`, "<li>session affinity expires</li>"} {
		assert.Contains(t, html, want)
	}
	r.Beside = &report.Implementation{Name: "another"}
	assert.NotContains(t, asHTML(t, r), `id="features"`)
}

// withFeatures is a report that knows of three features, and of no other.
func withFeatures(t *testing.T) *report.Report {
	r := example(t)
	for name, v := range map[string]report.Verdict{"ports with one number and different protocols do not mix": report.Slow,
		"an SCTP service without endpoints refuses": report.Passed, "session affinity expires": report.Unsupported,
		"hints for zones keep to the node's zone": report.Passed} {
		r.Results = append(r.Results, report.Result{Case: name, Profile: report.Core, Verdict: v})
	}
	return r
}

// TestThePageHasEverything: what a reader without JavaScript needs is in the text. testing/browser looks at it.
func TestThePageHasEverything(t *testing.T) {
	html := asHTML(t, example(t))
	for _, want := range []string{"example-proxy 1.2.3, mode nftables", "1 passed, 1 slow, 1 failed, 1 not judged",
		"6.1.0", "load average 0.5 before and 51.3 after", "--seed 7",
		"supports <b>SessionAffinity</b>", "lacks <b>SCTP</b>", "terminating endpoints are a fallback",
		"delivered to 10.244.2.7:8080, which saw 192.0.2.10", "deliver to 10.244.1.5:8080", "and 2 more",
		"the destination becomes 10.244.2.7:8080", "here it goes wrong", "kind: Service",
		`<dt id="rule-S27">S27</dt><dd>With eTP Cluster, external traffic`, "<code>nodePortAddresses</code>",
		"<strong>depart</strong>"} {
		assert.Contains(t, html, want)
	}
	assertWhole(t, html)
}

// assertWhole fails if a page has a link that leads nowhere, or something from elsewhere.
func assertWhole(t *testing.T, html string) {
	t.Helper()
	for _, link := range regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(html, -1) {
		assert.Contains(t, html, `id="`+link[1]+`"`, "a link that leads nowhere")
	}
	assert.NotRegexp(t, `(?i)(src|href)="?(https?:)?//|url\(|@import`, html, "something from elsewhere")
}

func TestSeveralReportsSideBySide(t *testing.T) {
	other := example(t)
	other.Implementation.Mode = "iptables"
	other.Results[2].Verdict = report.Failed
	other.Results = append(other.Results[1:3], report.Result{Case: "only here", Profile: report.Core,
		Verdict: report.Passed})
	html := asHTML(t, example(t), other)
	row := regexp.MustCompile(`(?s)<tr class="case([^"]*)"><th scope="row">([^<]*)(.*?)</tr>`)
	rows := row.FindAllStringSubmatch(html, -1)
	cells := map[string]string{}
	for _, row := range rows {
		verdicts := regexp.MustCompile(`<td class="cell ([^"]*)"`).FindAllStringSubmatch(row[3], -1)
		require.Len(t, verdicts, 2)
		cells[strings.TrimSpace(row[2])] = verdicts[0][1] + "|" + verdicts[1][1] + ":" + row[1]
	}
	assert.Equal(t, map[string]string{
		"terminating endpoints are a fallback":     "passed|failed: has-passed has-failed",
		"external traffic stays on the node":       "failed|failed: has-failed",
		"UDP flows follow the endpoints":           "slow|: has-slow",
		"only here":                                "|passed: has-passed",
		"SCTP is served":                           "unsupported|: has-unsupported",
		"affinity ends after its timeout":          "passed|: has-passed",
		"the client stays with its endpoint":       "not-judged|: has-not-judged",
		"the oldest service owns a shared address": "not-run|: has-not-run",
	}, cells)
}

func TestThePageOfNothing(t *testing.T) {
	assert.Contains(t, asHTML(t), "0 reports")
	assert.Contains(t, asHTML(t, &report.Report{}), "Nothing failed")
}

// TestThePageEscapes: an evil text makes the same elements as a harmless one.
func TestThePageEscapes(t *testing.T) {
	tags := func(text string) []string {
		html := asHTML(t, everywhere(text))
		return regexp.MustCompile(`<[a-zA-Z/!][^\s>]*`).FindAllString(html, -1)
	}
	want := tags("harmless")
	for _, text := range []string{"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "</style></title><b>",
		"javascript:alert(1)", "' onclick='alert(1)", "{{.Policy}}", "--><!--", "\x00<\xff\u202e"} {
		assert.Equal(t, want, tags(text), "%q", text)
	}
}

// TestTheLookIsThatOfPackagePage: the same colours, light and dark.
func TestTheLookIsThatOfPackagePage(t *testing.T) {
	colours := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		colours, _, found := strings.Cut(string(text), "\n* {")
		require.True(t, found)
		return colours
	}
	assert.Equal(t, colours("../../../../node/page/assets/page.css"), colours("assets/page.css"))
}
