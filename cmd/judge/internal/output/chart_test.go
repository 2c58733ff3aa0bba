package output

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// measuredReport has figures of speed, as the judge takes them; old those of an earlier one.
func measuredReport() (now, old *report.Report) {
	l := report.Latency{P50: 3.6, P99: 22, Count: 100, CPU: 700, Quantiles: report.Quantiles{2, 3.6, 9, 22, 30}}
	name := report.Implementation{Name: "a", Mode: "nftables"}
	now = &report.Report{Implementation: name, Speed: &report.Speed{Runs: []report.SpeedRun{
		{Start: 5}, // of the cases
		{Services: 1000, Endpoints: 10, Change: l, Burst: report.Latency{P50: 104, P99: 181, Count: 100,
			Judge: &report.Judge{Write: 5, P50: 12, P99: 20}},
			Rates: []report.Rate{{PerSecond: 1000, Latency: l, Written: 10_000, Probed: 500, Late: 1.5,
				Listing: &report.Listing{Command: "nft list ruleset", Time: 60_000, Unfinished: true, Changes: l}}},
			Listing: &report.Listing{Command: "nft list ruleset", Time: 450, Bytes: 1 << 20}}}}}
	old = &report.Report{Implementation: name, Speed: &report.Speed{Runs: []report.SpeedRun{
		{Services: 1000, Endpoints: 10, Change: report.Latency{P50: 35, P99: 48, Count: 20},
			Churn: report.Latency{P50: 620, P99: 1109, Count: 99}},
		{Services: 44000, Endpoints: 1, Problem: "start: the program took too long"}}}}
	return now, old
}

func TestTwoReportsAreDrawnInOnePicture(t *testing.T) {
	now, old := measuredReport()
	c := newCharts([]*report.Report{now, {}, old})
	assert.Equal(t, []chartName{{1, "a, mode nftables"}, {2, "a, mode nftables (2)"}}, c.Names)
	require.Len(t, c.Sizes, 2)
	var drawn []string
	for _, p := range c.Sizes[0].Panels {
		text := p.Title + ":"
		for _, line := range p.Lines {
			text += " " + c.Names[line.Series-1].Text + " " + line.Text + ";"
			if line.Path != "" {
				text += " drawn"
			}
		}
		drawn = append(drawn, text)
	}
	assert.Equal(t, []string{
		"One change at a time: a, mode nftables p50 3.6 ms, p99 22 ms; drawn a, mode nftables (2) p50 35 ms, p99 48 ms;",
		"100 changes at once: a, mode nftables p50 104 ms, p99 181 ms; the judge’s own part: p50 12 ms, p99 20 ms;",
		"10 changes a second: a, mode nftables (2) p50 620 ms, p99 1.1 s;",
		"1,000 changes a second: a, mode nftables p50 3.6 ms, p99 22 ms; drawn",
	}, drawn)
	assert.Equal(t, []string{"a, mode nftables (2): start: the program took too long"}, c.Sizes[1].Problems)
	assert.Equal(t, [][]string{
		{"none", "", "", "", "", "", "", "nft list ruleset: 450 ms", ""},
		{"1,000 a second", "3.6 ms", "22 ms", "10,000", "100 of 500", "1.5 ms", "7.0 % of one",
			"nft list ruleset: not in 60 s",
			"22 ms"},
	}, [][]string{c.Sizes[0].Rows[0].Cells, c.Sizes[0].Rows[1].Cells})
	ofCases := &report.Speed{Runs: []report.SpeedRun{{Start: 3}}}
	assert.Nil(t, newCharts([]*report.Report{{}, {Speed: ofCases}}), "nothing to draw")
}

// Shorter times are further left; those that are longer than the chart are at its right edge.
func TestTimesHaveTheirPlaces(t *testing.T) {
	assert.InDelta(t, frameLeft, timeAt(0), 0)
	assert.InDelta(t, frameLeft, timeAt(1), 0)
	assert.InDelta(t, (frameLeft+frameRight)/2, timeAt(100), 0.1)
	assert.InDelta(t, frameRight, timeAt(99_000), 0)
	assert.InDelta(t, frameTop, shareAt(1), 0)
	now, _ := measuredReport()
	line := newCharts([]*report.Report{now}).Sizes[0].Panels[0].Lines[0]
	assert.Equal(t, "M67.8 172L86.3 131.5L115.2 91L143.3 50.5L153.1 10", line.Path)
}

func TestThePageDrawsSpeed(t *testing.T) {
	now, old := measuredReport()
	var b bytes.Buffer
	require.NoError(t, HTML(&b, now, old))
	html := b.String()
	for _, want := range []string{`href="#speed"`, `id="speed"`, "1,000 services x 10 endpoints",
		`aria-label="Distribution. 100 changes at once, 1,000 services x 10 endpoints; a, mode nftables: p50 104 ms`,
		`class="line series-1" d="M67.8 172`, `class="dot series-2"`, "not in 60 s", "the program took too long"} {
		assert.Contains(t, html, want)
	}
	assert.Len(t, regexp.MustCompile(`role="img"`).FindAllString(html, -1), 4)
	b.Reset()
	require.NoError(t, HTML(&b, &report.Report{}))
	assert.NotContains(t, b.String(), `id="speed"`)
}

func TestTimesAndNumbersInWords(t *testing.T) {
	for ms, want := range map[float64]string{0: "0 ms", 0.4: "0.4 ms", 1: "1 ms", 9.96: "10.0 ms", 10.4: "10 ms",
		999:  "999 ms",
		1000: "1 s", 1109: "1.1 s", 60_000: "60 s"} {
		assert.Equal(t, want, inTime(ms))
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		assert.Equal(t, want, thousands(n))
	}
}
