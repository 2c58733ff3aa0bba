package benchmarks

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// summary is the results of a run, to be printed as the table of docs/benchmarks.md.
type summary struct {
	version string
	lines   []summaryLine
}

type summaryLine struct {
	comparison comparison
	results    map[string][]*result
}

// column is a column of the table: a figure, and how to print it.
type column struct {
	title string
	value func(*result) float64
	text  func(float64) string
}

func columns() []column {
	inTime := func(v float64) string {
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
	inMemory := func(v float64) string { return fmt.Sprintf("%.0f MiB", v) }
	return []column{
		{"start to every service reached", untilAll, inTime},
		{"one endpoint replaced, p50", p50, inTime},
		{"processor time of that", func(r *result) float64 { return ms(r.changeCPU) }, inTime},
		{fmt.Sprintf("%d replaced at once", burstSize), func(r *result) float64 { return ms(r.burst) }, inTime},
		{"peak memory, with child", peaks, inMemory},
	}
}

// print writes the table in Markdown: upstream's figure, ours, and their ratio.
func (s *summary) print(w io.Writer) {
	if len(s.lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\nkube-proxy %s / kube-proxy-lib (ratio)\n\n| services x endpoints | mode |", s.version)
	for _, c := range columns() {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n|%s\n", strings.Repeat("---|", 2+len(columns())))
	for _, l := range s.lines {
		fmt.Fprintf(w, "| %d x %d | %s |", l.comparison.services, endpointsPerService, l.comparison.mode.name)
		for _, c := range columns() {
			theirs, own := mean(l.results[upstream], c.value), mean(l.results[ours], c.value)
			fmt.Fprintf(w, " %s / %s", textOf(theirs, c.text), textOf(own, c.text))
			if r := theirs / own; !math.IsNaN(r) {
				fmt.Fprintf(w, " (%.*fx)", digits(r), r)
			}
			fmt.Fprint(w, " |")
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

func textOf(v float64, text func(float64) string) string {
	if math.IsNaN(v) {
		return "-"
	}
	return text(v)
}

// digits is how many digits after the point a ratio deserves.
func digits(ratio float64) int {
	if ratio >= 10 {
		return 0
	}
	return 1
}
