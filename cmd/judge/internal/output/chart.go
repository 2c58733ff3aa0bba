package output

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// The charts of the page: for each cluster size the latency distributions, one line per report.

// chartsTemplate renders charts. Its styles are in page.css.
const chartsTemplate = `{{define "charts"}}
<section id="speed" aria-labelledby="speed-title">
  <h2 id="speed-title">From the write of a change until a packet shows it</h2>
  <p class="lead">How many of the changes have shown after how long: the further left, the faster.
    Dots are p50 and p99.</p>
  <ul class="legend">{{range .Names}}<li>{{template "sample" .Series}} {{.Text}}</li>{{end}}</ul>
  {{- range .Sizes}}
  <h3>{{.Title}}</h3>
  {{- range .Problems}}
  <p class="warning">{{.}}</p>{{end}}
  <div class="charts">
  {{- range .Panels}}
    <figure>
      <figcaption>{{.Title}}</figcaption>
      <svg viewBox="0 0 360 200" role="img" aria-label="{{.Alt}}">
        {{- range .Ticks}}
        <path class="grid" d="{{.Line}}"/>
        <text class="tick" x="{{.X}}" y="{{.Y}}" text-anchor="{{.Anchor}}">{{.Text}}</text>{{end}}
        {{- range .Lines}}
        {{- $series := .Series}}
        {{- with .Path}}
        <path class="line series-{{$series}}" d="{{.}}"/>{{end}}
        {{- range .Dots}}
        <circle class="dot series-{{$series}}" cx="{{.X}}" cy="{{.Y}}" r="3.5"/>{{end}}{{end}}
      </svg>
      <ul class="values">{{range .Lines}}<li>{{template "sample" .Series}} {{.Text}}</li>{{end}}</ul>
    </figure>
  {{- end}}
  </div>
  {{- with .Rows}}
  <div class="scroll" tabindex="0"><table><tr><th scope="col">Program</th><th scope="col">Changes</th>
    <th scope="col">p50</th><th scope="col">p99</th><th scope="col">Written</th>
    <th scope="col">Seen, of those probed</th><th scope="col">Written late, p99</th>
    <th scope="col">Processor</th><th scope="col">Listing of the rules</th>
    <th scope="col">Changes beside it, p99</th></tr>
  {{- range .}}
  <tr><th scope="row">{{.Name}}</th>{{range .Cells}}<td>{{.}}</td>{{end}}</tr>{{end}}
  </table></div>{{end}}
  {{- end}}
</section>
{{end}}
{{define "sample"}}
<svg class="sample" viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">
<path class="line series-{{.}}" d="M1 5H27"/></svg>{{end}}`

// charts is the data of chartsTemplate.
type charts struct {
	Names []chartName
	Sizes []sizeCharts
}

// chartName is a report in the legend. Series is the number of its colour, starting at 1.
type chartName struct {
	Series int
	Text   string
}

type sizeCharts struct {
	Title    string
	Problems []string
	Panels   []panel
	Rows     []rateRow
}

type panel struct {
	Title, Alt string
	Ticks      []tick
	Lines      []chartLine
}

// tick is a grid line with its label.
type tick struct {
	Line   string
	X, Y   float64
	Anchor string
	Text   string
}

// chartLine is the distribution of one report. Path is "" if the report has only two percentiles.
type chartLine struct {
	Series int
	Path   string
	Dots   [2]struct{ X, Y float64 }
	Text   string
}

// rateRow has one report's figures at one rate.
type rateRow struct {
	Name  string
	Cells []string
}

// churnRate is the rate of [report.SpeedRun.Churn].
const churnRate = 10

// chartColours is the number of colours.
const chartColours = 4

// newCharts returns the charts of reports, or nil if they have no figures.
func newCharts(reports []*report.Report) *charts {
	var c charts
	var runs []namedRun
	for _, r := range reports {
		if r.Speed == nil {
			continue
		}
		n := chartName{Series: len(c.Names)%chartColours + 1, Text: r.Title()}
		for again := 2; slices.ContainsFunc(c.Names, func(o chartName) bool { return o.Text == n.Text }); again++ {
			n.Text = fmt.Sprintf("%s (%d)", r.Title(), again)
		}
		known := len(runs)
		for i := range r.Speed.Runs {
			if run := &r.Speed.Runs[i]; run.Services > 0 {
				runs = append(runs, namedRun{n, run})
			}
		}
		if len(runs) > known {
			c.Names = append(c.Names, n)
		}
	}
	for len(runs) > 0 {
		same := func(r namedRun) bool { return r.Services == runs[0].Services && r.Endpoints == runs[0].Endpoints }
		var some, others []namedRun
		for _, r := range runs {
			if same(r) {
				some = append(some, r)
			} else {
				others = append(others, r)
			}
		}
		c.Sizes = append(c.Sizes, chartsOfSize(some))
		runs = others
	}
	if len(c.Sizes) == 0 {
		return nil
	}
	return &c
}

type namedRun struct {
	chartName
	*report.SpeedRun
}

// chartsOfSize returns the charts of one cluster size.
func chartsOfSize(runs []namedRun) sizeCharts {
	s := sizeCharts{Title: fmt.Sprintf("%s services x %s endpoints", thousands(runs[0].Services),
		thousands(runs[0].Endpoints))}
	var rates []int
	for _, r := range runs {
		if r.Problem != "" {
			s.Problems = append(s.Problems, r.Text+": "+r.Problem)
		}
		for _, rate := range append(r.Rates, report.Rate{PerSecond: churnRate}) {
			if !slices.Contains(rates, rate.PerSecond) {
				rates = append(rates, rate.PerSecond)
			}
		}
	}
	slices.Sort(rates)
	draw := func(title string, of func(*report.SpeedRun) *report.Latency) {
		if p := newPanel(title, s.Title, runs, of); len(p.Lines) > 0 {
			s.Panels = append(s.Panels, p)
		}
	}
	draw("One change at a time", func(r *report.SpeedRun) *report.Latency { return &r.Change })
	draw("100 changes at once", func(r *report.SpeedRun) *report.Latency { return &r.Burst })
	for _, rate := range rates {
		draw(thousands(rate)+" changes a second", func(r *report.SpeedRun) *report.Latency {
			if found := r.PerSecond(rate); found != nil {
				return &found.Latency
			}
			return nil
		})
	}
	for _, r := range runs {
		if r.Listing != nil {
			s.Rows = append(s.Rows, rateRow{r.Text, []string{"none", "", "", "", "", "", "", listing(r.Listing), ""}})
		}
	}
	for _, rate := range rates {
		for _, r := range runs {
			if found := r.PerSecond(rate); found != nil && found.Written > 0 {
				s.Rows = append(s.Rows, rateRow{r.Text, cells(found)})
			}
		}
	}
	return s
}

// cells formats the figures of a rate.
func cells(r *report.Rate) []string {
	list := []string{thousands(r.PerSecond) + " a second", inTime(r.P50), inTime(r.P99), thousands(r.Written),
		thousands(r.Count) + " of " + thousands(r.Probed), inTime(r.Late), "", "", ""}
	if seconds := float64(r.Written) / float64(max(r.PerSecond, 1)); seconds > 0 {
		list[6] = fmt.Sprintf("%.1f %% of one", r.CPU/seconds/10)
	}
	if r.Listing != nil {
		list[7] = listing(r.Listing)
		if r.Listing.Changes.Count > 0 {
			list[8] = inTime(r.Listing.Changes.P99)
		}
	}
	return list
}

// listing formats the duration of a listing.
func listing(l *report.Listing) string {
	switch {
	case l.Problem != "":
		return l.Command + " failed: " + l.Problem
	case l.Unfinished:
		return l.Command + ": not in " + inTime(l.Time)
	}
	return l.Command + ": " + inTime(l.Time)
}

// The size of a panel in its own units, and the times at its left and right edges, in milliseconds.
const (
	frameLeft, frameRight, frameTop, frameBottom = 46, 336, 10, 172
	leastTime, mostTime                          = 1, 10_000
)

// timeAt and shareAt return the coordinate of a time in milliseconds and of a share of the changes in a panel.
func timeAt(ms float64) float64 {
	ms = min(max(ms, leastTime), mostTime)
	return tenths(frameLeft + (frameRight-frameLeft)*math.Log10(ms/leastTime)/math.Log10(mostTime/leastTime))
}

func shareAt(share float64) float64 { return tenths(frameBottom - (frameBottom-frameTop)*share) }

func tenths(v float64) float64 { return math.Round(v*10) / 10 }

func newPanel(title, size string, runs []namedRun, of func(*report.SpeedRun) *report.Latency) panel {
	p := panel{Title: title, Alt: "Distribution. " + title + ", " + size}
	for ms := float64(leastTime); ms <= mostTime; ms *= 10 {
		x := timeAt(ms)
		p.Ticks = append(p.Ticks, tick{fmt.Sprintf("M%v %dV%d", x, frameTop, frameBottom), x, frameBottom + 18, "middle",
			inTime(ms)})
	}
	for _, share := range []float64{0, 0.5, 1} {
		y := shareAt(share)
		p.Ticks = append(p.Ticks, tick{fmt.Sprintf("M%d %vH%d", frameLeft, y, frameRight), frameLeft - 6, y + 4, "end",
			fmt.Sprintf("%.0f %%", share*100)})
	}
	for _, r := range runs {
		l := of(r.SpeedRun)
		if l == nil || l.Count == 0 {
			continue
		}
		line := chartLine{Series: r.Series, Text: "p50 " + inTime(l.P50) + ", p99 " + inTime(l.P99)}
		line.Dots[0].X, line.Dots[0].Y = timeAt(l.P50), shareAt(0.5)
		line.Dots[1].X, line.Dots[1].Y = timeAt(l.P99), shareAt(0.99)
		if n := len(l.Quantiles); n > 1 {
			var b strings.Builder
			for i, q := range l.Quantiles {
				fmt.Fprintf(&b, "%s%v %v", map[bool]string{true: "M", false: "L"}[i == 0], timeAt(q),
					shareAt(float64(i)/float64(n-1)))
			}
			line.Path = b.String()
		}
		if l.Judge != nil {
			line.Text += fmt.Sprintf("; the judge’s own part: p50 %s, p99 %s", inTime(l.Judge.P50), inTime(l.Judge.P99))
		}
		p.Alt += fmt.Sprintf("; %s: %s", r.Text, line.Text)
		p.Lines = append(p.Lines, line)
	}
	return p
}

// inTime formats a time in milliseconds with a suitable unit.
func inTime(ms float64) string {
	switch {
	case ms >= 10_000:
		return fmt.Sprintf("%.0f s", ms/1000)
	case ms >= 1000:
		return strings.Replace(fmt.Sprintf("%.1f s", ms/1000), ".0 ", " ", 1)
	case ms >= 10 || ms == math.Trunc(ms):
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

// thousands formats a number with commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
