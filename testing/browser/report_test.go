package browser

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// serve serves the page of reports.
func serve(t *testing.T, reports ...*report.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, report.WriteHTML(&b, reports...))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) }))
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
	want := oracle.Outcome{
		Flow: oracle.Flow{From: oracle.External, Source: netip.MustParseAddr("203.0.113.9"),
			Destination: netip.MustParseAddrPort("192.0.2.10:30080"), Protocol: model.TCP},
		Verdict:   oracle.Deliver,
		Endpoints: []oracle.Destination{{Endpoint: netip.MustParseAddrPort("10.244.1.5:8080")}},
		Reasons: []oracle.Reason{{Text: "192.0.2.10:30080 is a node port of default/web", Rule: "S35"},
			{Text: "policy Local, and the client is outside: local endpoints only", Rule: "S27"}},
	}
	failure := report.Compare("client", "the node port of web", want, oracle.Observation{Verdict: oracle.Deliver,
		Endpoint: netip.MustParseAddrPort("10.244.2.7:8080"), Source: netip.MustParseAddr("192.0.2.10")}, nil)
	failure.Objects = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  externalTrafficPolicy: Local\n"
	r.Results = append(r.Results,
		report.Result{Case: "external traffic stays on the node", Rules: []string{"S27", "S35"}, Profile: report.Core,
			Verdict: report.Failed, Why: "1 flow went wrong", Failures: []report.Failure{failure}},
		report.Result{Case: "the clean-up leaves nothing", Rules: []string{"S50"}, Profile: report.Core,
			Verdict: report.Failed, Why: "it left a chain", Failures: []report.Failure{{Seen: "chain KUBE-LEFT is still there"}}},
		report.Result{Case: "UDP flows follow the endpoints", Rules: []string{"S40"}, Profile: report.Core,
			Verdict: report.Slow, Why: "right after 3 s"},
		report.Result{Case: "SCTP is served", Profile: report.Extended, Feature: "SCTP", Verdict: report.Unsupported,
			Why: "the proxy lacks SCTP"},
		report.Result{Case: "the oldest service owns a shared address", Rules: []string{"S59"}, Profile: report.Note,
			Verdict: report.NotRun, Why: "not selected"})
	return r
}

// comparison is a report of two programs side by side: with a difference that takes many words, one that is left behind,
// and something that both do wrong.
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

const (
	shownRows = "[...document.querySelectorAll('tr.case')].filter((r) => r.getClientRects().length > 0).length"
	shownText = "[...document.querySelectorAll('article')].filter((a) => a.getClientRects().length > 0)" +
		".map((a) => a.textContent).join()"
)

// A reader without a mouse filters the matrix, and reads why a case failed.
func TestTheReport(t *testing.T) {
	b := newTab(t)
	url := serve(t, conformance("nftables"))
	b.do(visit(url), text("#count", "45 cases"))
	assert.Contains(t, value[string](b, "document.querySelector('.report').innerText"), "40 passed, 1 slow, 2 failed")
	b.do(focus("#show-failed"), chromedp.KeyEvent(" "), until(shownRows+" === 3"), text("#count", "3 cases"))
	b.do(focus("#show-untried"), chromedp.KeyEvent(" "), until(shownRows+" === 2"),
		focus("#show-all"), chromedp.KeyEvent(" "), until(shownRows+" === 45"))
	slash := script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
	b.do(slash, until("document.activeElement.id === 'q'"), chromedp.KeyEvent("s27 EXTERNAL"), until(shownRows+" === 1"),
		text("#count", "1 case"), focus("tr.case:not([hidden]) a"), chromedp.KeyEvent(kb.Enter),
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
	url := serve(t, comparison())
	b.do(visit(url), text("#count", "5 cases"))
	assert.Equal(t, "example-proxy 1.2.3, mode iptables beside kube-proxy v1.37.2, mode nftables",
		value[string](b, "document.querySelector('.report h2').innerText"))
	for selector, want := range map[string]string{"h1": "Service proxies side by side", "nav": "Differences"} {
		assert.Contains(t, value[string](b, fmt.Sprintf("document.querySelector(%q).innerText", selector)), want)
	}
	b.do(focus("td.failed a"), chromedp.KeyEvent(kb.Enter), until(shownText+".includes('left: nft table')"),
		focus("#all"), chromedp.KeyEvent(" "), until(shownText+".includes('mode nftables: reject')"))
	b.behaved(url)
}

// Without JavaScript all is there but the search.
func TestTheReportWithoutJavaScript(t *testing.T) {
	b := newTab(t)
	url := serve(t, conformance("nftables"))
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
	one := serve(t, conformance("nftables"))
	several := serve(t, conformance("nftables"), conformance("iptables"), conformance("ipvs"), conformance("userspace"))
	compared := serve(t, comparison())
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			for name, url := range map[string]string{"report": one, "reports": several, "comparison": compared} {
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
				b.do(focus("td.failed a"), chromedp.KeyEvent(kb.Enter), until("document.querySelector('article:target')"))
				look("failure")
				b.do(script("document.querySelectorAll('details').forEach((d) => { d.open = true; })"))
				look("details")
			}
		}
	}
}

// Whatever a program prints is shown as text.
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
	url := serve(t, r)
	b.do(visit(url), text("#count", "45 cases"), text("h2", "<img src=x"), focus("td.failed a"),
		chromedp.KeyEvent(kb.Enter), until(shownText+".includes('<script>alert(2)')"))
	assert.Zero(t, value[int](b, "document.querySelectorAll('img, iframe').length"), "names have become elements")
	assert.Equal(t, 1, value[int](b, "document.querySelectorAll('script').length"))
	assert.False(t, strings.Contains(value[string](b, "document.body.textContent"), "\u202e"))
	b.behaved(url)
}
