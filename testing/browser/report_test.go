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
	b := newTab(t)
	one := serve(t, conformance("nftables"))
	several := serve(t, conformance("nftables"), conformance("iptables"), conformance("ipvs"), conformance("userspace"))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			for name, url := range map[string]string{"report": one, "reports": several} {
				b.do(prefer(scheme), chromedp.EmulateViewport(width, 860), visit(url), text("#count", "45 cases"))
				look := func(view string) {
					assert.False(t, value[bool](b, "document.documentElement.scrollWidth > innerWidth"),
						"%s of %s is wider than %d", view, name, width)
					b.look(fmt.Sprintf("%s-%s-%s-%d", name, view, scheme, width))
				}
				look("top")
				b.do(focus("td.failed a"), chromedp.KeyEvent(kb.Enter), until("document.querySelector('article:target')"))
				look("failure")
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
