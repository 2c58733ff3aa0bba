package benchmarks

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// column is a figure: a column of the table, and a metric of the benchmark.
type column struct {
	title string
	unit  string // of the metric
	value func(*report.SpeedRun) float64
	text  func(float64) string
}

func columns() []column {
	return []column{
		{"start to every service reached", "start-ms", start, inTime},
		{"one endpoint replaced, p50", "change-p50-ms", change, inTime},
		{"p99", "change-p99-ms", func(s *report.SpeedRun) float64 { return measured(s.Change.P99) }, inTime},
		{"processor time of one", "change-cpu-ms", changeCPU, inTime},
		{"100 replaced at once, p50", "burst-p50-ms", burst, inTime},
		{"p99", "burst-p99-ms", func(s *report.SpeedRun) float64 { return measured(s.Burst.P99) }, inTime},
		{"ten replaced a second, p50", "churn-p50-ms", p50(10), inTime},
		{"p99", "churn-p99-ms", p99(10), inTime},
		{"100 a second, p50", "churn100-p50-ms", p50(100), inTime},
		{"p99", "churn100-p99-ms", p99(100), inTime},
		{"1,000 a second, p50", "churn1000-p50-ms", p50(1000), inTime},
		{"p99", "churn1000-p99-ms", p99(1000), inTime},
		{"listing beside ten a second", "listing-ms", listing, inTime},
		{"longest gap", "gap-ms", func(s *report.SpeedRun) float64 { return measured(s.Gap) }, inTime},
		{"peak memory, with children", "peak-MiB", memory, func(v float64) string { return fmt.Sprintf("%.0f MiB", v) }},
	}
}

// A figure is NaN if it was not measured.

func start(s *report.SpeedRun) float64     { return measured(s.Start) }
func change(s *report.SpeedRun) float64    { return measured(s.Change.P50) }
func changeCPU(s *report.SpeedRun) float64 { return measured(s.Change.CPU / float64(s.Change.Count)) }
func memory(s *report.SpeedRun) float64    { return measured(float64(s.Memory) / (1 << 20)) }

// atRest is the processor time at rest, in percent of one; none is a figure.
func atRest(s *report.SpeedRun) float64 { return s.Rest.CPU / s.Rest.Time * 100 }

func burst(s *report.SpeedRun) float64 { return measured(s.Burst.P50) }

// ofRate is a figure of changes at a rate.
func ofRate(rate int, value func(*report.Rate) float64) func(*report.SpeedRun) float64 {
	return func(s *report.SpeedRun) float64 {
		if r := s.PerSecond(rate); r != nil && r.Count > 0 {
			return measured(value(r))
		}
		return math.NaN()
	}
}

func p50(rate int) func(*report.SpeedRun) float64 {
	return ofRate(rate, func(r *report.Rate) float64 { return r.P50 })
}

func p99(rate int) func(*report.SpeedRun) float64 {
	return ofRate(rate, func(r *report.Rate) float64 { return r.P99 })
}

// share is the processor time of changes at a rate, in percent of one processor.
func share(rate int) func(*report.SpeedRun) float64 {
	return ofRate(rate, func(r *report.Rate) float64 { return r.CPU * float64(r.PerSecond) / float64(r.Written) / 10 })
}

// listing is how long listing the rules takes beside ten changes a second, 0 if it does not finish.
func listing(s *report.SpeedRun) float64 {
	return ofRate(10, func(r *report.Rate) float64 {
		if r.Listing == nil || r.Listing.Unfinished || r.Listing.Problem != "" {
			return 0
		}
		return r.Listing.Time
	})(s)
}

func measured(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// of returns a figure of a proxy, NaN if there is none.
func (f figures) of(proxy string, value func(*report.SpeedRun) float64) float64 {
	if f[proxy] == nil {
		return math.NaN()
	}
	return value(f[proxy])
}

func inTime(v float64) string {
	switch d := time.Duration(v * float64(time.Millisecond)); {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f ms", v)
}

// printHead writes what precedes the rows.
func printHead(w io.Writer, version string) {
	fmt.Fprintf(w, "\nkube-proxy %s / kube-proxy-lib (ratio), %s\n\n| services x endpoints | mode |", version,
		time.Now().Format(time.DateOnly))
	for _, c := range columns() {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n|%s\n", strings.Repeat("---|", 2+len(columns())))
}

// printRow writes a row in Markdown: upstream's figures, ours, and their ratios.
func printRow(w io.Writer, c comparison, f figures) {
	fmt.Fprintf(w, "| %d x %d | %s |", c.Services, c.Endpoints, c.mode.name)
	for _, column := range columns() {
		left, right := f.of(upstream, column.value), f.of(ours, column.value)
		cell := textOf(left, column.text) + " / " + textOf(right, column.text)
		if r := left / right; r >= 10 {
			cell += fmt.Sprintf(" (%.0fx)", r)
		} else if !math.IsNaN(r) {
			cell += fmt.Sprintf(" (%.1fx)", r)
		}
		fmt.Fprintf(w, " %s |", cell)
	}
	fmt.Fprintln(w)
}

func textOf(v float64, text func(float64) string) string {
	if math.IsNaN(v) {
		return "-"
	}
	return text(v)
}
