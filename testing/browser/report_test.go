package browser

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// judge builds the command that writes pages of reports, and returns its folder.
func judge(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder, "./cmd/judge")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return folder
}

// serve serves the page that the judge makes of reports.
func serve(t *testing.T, judge string, reports ...*report.Report) string {
	t.Helper()
	folder := t.TempDir()
	args := []string{"--report", folder}
	for i, r := range reports {
		var b bytes.Buffer
		require.NoError(t, report.WriteYAML(&b, r))
		path := filepath.Join(folder, fmt.Sprintf("%d.yaml", i))
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
		args = append(args, "--page", path)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(judge, "judge"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	page, err := os.ReadFile(filepath.Join(folder, "report.html"))
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) }))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // or the browser's would keep the server
	return server.URL
}

// conformance is a report with two failures among many cases.
func conformance(mode string) *report.Report {
	r := &report.Report{
		Implementation: report.Implementation{Name: "example-proxy", Version: "1.2.3", Mode: mode,
			Command: "judge --proxy 'example-proxy --kubeconfig {kubeconfig}' --report out/"},
		Kernel: "6.1.0-30-amd64", Suite: "0.1", Seed: 7,
	}
	for i := range 40 {
		r.Results = append(r.Results, report.Result{Case: fmt.Sprintf("traffic number %d goes where it should", i),
			Rules: []string{fmt.Sprintf("S%d", 21+i%9)}, Profile: report.Core, Verdict: report.Passed})
	}
	failure := report.Failure{
		Flow: &report.Flow{From: "client", To: "the node port of web", Source: "203.0.113.9",
			Destination: "192.0.2.10:30080", Protocol: "TCP"},
		Seen: "delivered to 10.244.2.7:8080, which saw 192.0.2.10",
		Want: []report.Outcome{{What: "deliver to 10.244.1.5:8080", Reasons: []report.Reason{
			{Text: "192.0.2.10:30080 is a node port of default/web", Rule: "S35"},
			{Text: "policy Local, and the client is outside: local endpoints only", Rule: "S27"}}}},
		Path: []report.Hop{
			{At: "client", Text: "sends from 203.0.113.9 to 192.0.2.10:30080"},
			{At: "node", Text: "the destination becomes 10.244.2.7:8080", Wrong: true},
			{At: "node", Text: "the source becomes 192.0.2.10"},
			{At: "10.244.2.7", Text: "answers at 10.244.2.7:8080"}},
	}
	failure.Objects = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  externalTrafficPolicy: Local\n"
	r.Results = append(r.Results,
		report.Result{Case: "external traffic stays on the node", Rules: []string{"S27", "S35"}, Profile: report.Core,
			Verdict: report.Failed, Why: "1 flow went wrong", Failures: []report.Failure{failure}},
		report.Result{Case: "the clean-up leaves nothing", Rules: []string{"S50"}, Profile: report.Core,
			Verdict: report.Failed, Why: "it left a chain", Failures: []report.Failure{
				{Seen: "chain KUBE-LEFT is still there"}}},
		report.Result{Case: "UDP flows follow the endpoints", Rules: []string{"S40"}, Profile: report.Core,
			Verdict: report.Slow, Why: "right after 3 s"},
		report.Result{Case: "SCTP is served", Profile: report.Extended, Feature: "SCTP", Verdict: report.Unsupported,
			Why: "the proxy lacks SCTP"},
		report.Result{Case: "the oldest service owns a shared address", Rules: []string{"S59"}, Profile: report.Note,
			Verdict: report.NotRun, Why: "not selected"})
	return r
}

// comparison is a report of two programs side by side: with a difference that has a long name, an object that clean-up
// has left, and something that both do wrong.
func comparison() *report.Report {
	names := [2]string{"kube-proxy-lib main, mode iptables", "kube-proxy v1.37.2, mode nftables"}
	r := conformance("iptables")
	r.Beside = &report.Implementation{Name: "kube-proxy", Version: "v1.37.2", Mode: "nftables"}
	r.Speed = &report.Speed{Machine: "2 x AMD EPYC, load average 0.10 at the beginning", Runs: []report.SpeedRun{
		{Services: 1000, Endpoints: 10, Start: 435.1, CPU: 210, Memory: 58 << 20, Gap: 9.6},
		{Services: 60000, Endpoints: 8, Problem: "start: the program took too long"}}}
	failure := r.Results[40].Failures[0]
	failure.Seen = names[0] + ": nobody translated 198.18.0.7:9999, or delivered to 10.244.1.5:8080 from 203.0.113.9\n" +
		names[1] + ": reject"
	both := failure
	both.Path = nil
	r.Results = []report.Result{
		{Case: "from outside to the unknown port of the cluster IP: " + names[0] + " leaves alone, " + names[1] + " refuses",
			Rules: []string{"S1", "S59"}, Profile: report.Comparison, Verdict: report.Failed,
			Why:      "what " + names[1] + " does is expected; 7 of 48 flows ended like this, in 1 of 1 clusters",
			Failures: []report.Failure{failure}},
		{Case: "from the node itself to the external IP: not as expected, it refuses with both", Rules: []string{"S27"},
			Profile: report.Note, Verdict: report.Failed, Why: "neither is expected", Failures: []report.Failure{both}},
		{Case: "clean-up of " + names[1] + " leaves nothing", Profile: report.Comparison, Verdict: report.Failed,
			Why: "something is left", Failures: []report.Failure{{Seen: "the node after clean-up is not the node before the " +
				"program:\nleft: nft table ip kube-proxy-with-a-name-that-is-longer-than-a-telephone-is-wide"}}},
		{Case: "clean-up of " + names[0] + " leaves nothing", Profile: report.Comparison, Verdict: report.NotRun,
			Why: "there is no command that cleans up"},
		{Case: "382 flows in 8 random clusters, but for what is different", Profile: report.Comparison,
			Verdict: report.Passed},
	}
	return r
}

// measured is a report with figures of speed: of a program that answers soon, or slowly, or of an earlier judge.
func measured(version string, factor float64) *report.Report {
	r := conformance("nftables")
	r.Implementation.Version = version
	r.Results = r.Results[:3]
	latency := func(p50 float64) report.Latency {
		l := report.Latency{P50: p50, P99: p50 * 4, Count: 500, CPU: 700, Gap: 9}
		for i := range 51 {
			l.Quantiles = append(l.Quantiles, p50*(0.3+1.4*float64(i)/50))
		}
		return l
	}
	run := report.SpeedRun{Services: 10_000, Endpoints: 10, Start: 1600, Change: latency(factor),
		Burst:   latency(30 * factor),
		Listing: &report.Listing{Command: "nft list ruleset", Time: 450, Bytes: 3 << 20}}
	run.Burst.Judge = &report.Judge{Write: 5, P50: 12, P99: 20}
	for _, rate := range []int{10, 100, 1000} {
		run.Rates = append(run.Rates, report.Rate{PerSecond: rate, Latency: latency(float64(rate) / 10 * factor),
			Written: 10 * rate, Probed: 500, Late: 1.2, Listing: &report.Listing{Command: "nft list ruleset", Time: 60_000,
				Unfinished: true, Changes: latency(9)}})
	}
	r.Speed = &report.Speed{Machine: "2 x AMD EPYC, load average 0.10 at the beginning", Runs: []report.SpeedRun{run,
		{Services: 44_000, Endpoints: 1, Problem: "start: the program took too long"}}}
	return r
}

const (
	shownRows = "[...document.querySelectorAll('tr.case')].filter((r) => r.getClientRects().length > 0).length"
	shownText = "[...document.querySelectorAll('article')].filter((a) => a.getClientRects().length > 0)" +
		".map((a) => a.textContent).join()"
)

// A reader without a mouse filters the matrix, and reads why a case failed.
func TestTheReport(t *testing.T) {
	b := newTab(t)
	url := serve(t, judge(t), conformance("nftables"))
	b.do(visit(url), text("#count", "45 cases"))
	assert.Contains(t, value[string](b, "document.querySelector('.report').innerText"), "40 passed, 1 slow, 2 failed")
	b.do(focus("#show-failed"), chromedp.KeyEvent(" "), until(shownRows+" === 3"), text("#count", "3 cases"))
	b.do(focus("#show-untried"), chromedp.KeyEvent(" "), until(shownRows+" === 2"),
		focus("#show-all"), chromedp.KeyEvent(" "), until(shownRows+" === 45"))
	slash := script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
	b.do(slash, until("document.activeElement.id === 'q'"), chromedp.KeyEvent("s27 EXTERNAL"), until(shownRows+" === 1"),
		text("#count", "1 case"), focus("tr.case:not([hidden]) a"), enter(),
		until(shownText+".includes('external traffic stays on the node')"))
	shown := value[string](b, shownText)
	for _, want := range []string{"client 203.0.113.9 -> 192.0.2.10:30080/TCP (the node port of web)",
		"the destination becomes 10.244.2.7:8080", "here it goes wrong", "deliver to 10.244.1.5:8080", "S27",
		"externalTrafficPolicy: Local"} {
		assert.Contains(t, shown, want)
	}
	assert.NotContains(t, shown, "KUBE-LEFT", "one result at a time")
	b.do(focus("#all"), chromedp.KeyEvent(" "), until(shownText+".includes('KUBE-LEFT')"))
	b.behaved(url)
}

// A comparison says what was compared, and for each difference what both do.
func TestTheComparison(t *testing.T) {
	b := newTab(t)
	url := serve(t, judge(t), comparison())
	b.do(visit(url), text("#count", "5 cases"))
	assert.Equal(t, "example-proxy 1.2.3, mode iptables beside kube-proxy v1.37.2, mode nftables",
		value[string](b, "document.querySelector('.report h2').innerText"))
	for selector, want := range map[string]string{"h1": "Service proxies side by side", "nav": "Differences"} {
		assert.Contains(t, value[string](b, fmt.Sprintf("document.querySelector(%q).innerText", selector)), want)
	}
	b.do(focus("td.failed a"), enter(), until(shownText+".includes('left: nft table')"),
		focus("#all"), chromedp.KeyEvent(" "), until(shownText+".includes('mode nftables: reject')"))
	b.behaved(url)
}

// Two programs are in one chart: a line for each, of another colour and style, with its name. Screen readers get the
// figures.
func TestTheReportDrawsSpeed(t *testing.T) {
	b := newTab(t)
	url := serve(t, judge(t), measured("1.2.3", 3), measured("1.1.0", 300))
	b.do(visit(url), text("#speed", "10,000 services x 10 endpoints"))
	assert.Equal(t, []string{"One change at a time", "100 changes at once", "10 changes a second", "100 changes a second",
		"1,000 changes a second"},
		decoded[[]string](b, "[...document.querySelectorAll('figcaption')].map((e) => e.innerText)"))
	const line = "[...document.querySelectorAll('figure:first-of-type svg[role=img] .line')]" +
		".map((e) => getComputedStyle(e))"
	for _, property := range []string{"stroke", "strokeDasharray"} {
		kinds := decoded[[]string](b, line+".map((s) => s."+property+")")
		if assert.Len(t, kinds, 2) {
			assert.NotEqual(t, kinds[0], kinds[1], property)
		}
	}
	const lefter = "(() => { const [a, b] = [...document.querySelectorAll('figure:first-of-type svg[role=img] .line')]" +
		".map((e) => e.getBoundingClientRect()); return a.right < b.left; })()"
	assert.True(t, value[bool](b, lefter), "what is faster is further left")
	assert.Contains(t, value[string](b, "document.querySelector('figure svg').getAttribute('aria-label')"),
		"example-proxy 1.1.0, mode nftables: p50 300 ms, p99 1.2 s")
	assert.Contains(t, value[string](b, "document.querySelector('#speed').innerText"), "not in 60 s")
	b.behaved(url)
}

// Without JavaScript everything works except the search.
func TestTheReportWithoutJavaScript(t *testing.T) {
	b := newTab(t)
	url := serve(t, judge(t), conformance("nftables"))
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}), visit(url), until(shownRows+" === 45"), until("document.querySelector('#q').getClientRects().length === 0"),
		until(shownText+".includes('the destination becomes') || "+shownText+".includes('KUBE-LEFT')"))
	b.do(focus("#show-failed"), chromedp.KeyEvent(" "), until(shownRows+" === 3"),
		focus("#all"), chromedp.KeyEvent(" "), until(shownText+".includes('KUBE-LEFT') && "+shownText+
			".includes('the destination becomes 10.244.2.7:8080')"))
	b.behaved(url)
}

// TestTheReportFitsTheReader: in the dark, on a telephone, with one report and with several.
func TestTheReportFitsTheReader(t *testing.T) {
	axe := string(fromNPM(t, "axe-core"))
	b := newTab(t)
	built := judge(t)
	one := serve(t, built, conformance("nftables"))
	several := serve(t, built, conformance("nftables"), conformance("iptables"), conformance("ipvs"),
		conformance("userspace"))
	compared := serve(t, built, comparison())
	before := measured("1.1.0", 300)
	before.Speed.Runs[0].Rates, before.Speed.Runs[0].Churn = nil, report.Latency{P50: 620, P99: 1109, Count: 99}
	speed := serve(t, built, measured("1.2.3", 3), measured("1.2.2", 80), before,
		measured("1.0.0-with-a-name-that-is-longer-than-a-telephone-is-wide", 700))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			for name, url := range map[string]string{"report": one, "reports": several, "comparison": compared,
				"speed": speed} {
				b.do(prefer(scheme), chromedp.EmulateViewport(width, 860), visit(url),
					until("!!document.querySelector('#count').innerText"))
				look := func(view string) {
					assert.False(t, value[bool](b, "document.documentElement.scrollWidth > innerWidth"),
						"%s of %s is wider than %d", view, name, width)
					checks := []string{"misplaced", "unreadable"}
					if view == "details" { // which has everything
						checks = append(checks, "axe")
					}
					for _, what := range checks {
						assert.Empty(t, decoded[[]string](b, "looks."+what+"()"), "%s: %s of %s, %s, %d", what, view,
							name, scheme, width)
					}
					b.look(fmt.Sprintf("%s-%s-%s-%d", name, view, scheme, width))
				}
				b.do(script(axe), script(looks), until("looks.settled()"))
				look("top")
				if name == "speed" {
					b.do(script("document.getElementById('speed').scrollIntoView()"))
					look("details")
					continue
				}
				b.do(focus("td.failed a"), enter(), until("document.querySelector('article:target')"))
				look("failure")
				b.do(script("document.querySelectorAll('details').forEach((d) => { d.open = true; })"))
				look("details")
			}
		}
	}
}

// The output of programs is shown as text.
func TestAReportWithEvilNames(t *testing.T) {
	const evil = `<img src=x onerror=alert(1)>"'><script>alert(2)</script></style>{{7*7}}` + "\u202e\x00\xff/\"&lt;"
	r := conformance(evil)
	r.Problem, r.Log, r.Kernel, r.Implementation.URL = evil, evil, evil, "javascript:alert(3)"
	for i := range r.Results {
		result := &r.Results[i]
		if result.Verdict != report.Failed {
			continue
		}
		result.Case, result.Why, result.Ruleset, result.Rules = result.Case+evil, evil, evil, []string{evil}
		result.Failures = []report.Failure{{Step: evil, Seen: evil, Objects: evil, Flow: &report.Flow{From: evil},
			Want: []report.Outcome{{What: evil, Reasons: []report.Reason{{Text: evil, Rule: evil}}}},
			Path: []report.Hop{{At: evil, Text: evil}}}}
	}
	b := newTab(t)
	url := serve(t, judge(t), r)
	b.do(visit(url), text("#count", "45 cases"), text("h2", "<img src=x"), focus("td.failed a"),
		enter(), until(shownText+".includes('<script>alert(2)')"))
	assert.Zero(t, value[int](b, "document.querySelectorAll('img, iframe').length"), "names have become elements")
	assert.Equal(t, 1, value[int](b, "document.querySelectorAll('script').length"))
	assert.False(t, strings.Contains(value[string](b, "document.body.textContent"), "\u202e"))
	b.behaved(url)
}
