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
	title string
	rows  []string
}

// column is a column of the table: a figure, and how to print it.
type column struct {
	title string
	value func(*result) float64
	text  func(float64) string
	limit func(*result) float64 // what the figure exceeds where there is none; may be nil
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
	limit := func(r *result) float64 { return ms(r.startLimit) }
	return []column{
		{"start to every service reached", untilAll, inTime, limit},
		{"one endpoint replaced, p50", p50, inTime, nil},
		{"processor time of that", func(r *result) float64 { return ms(r.changeCPU) }, inTime, nil},
		{fmt.Sprintf("%d replaced at once", burstSize), func(r *result) float64 { return ms(r.burst) }, inTime, nil},
		{"peak memory, with child", peaks, inMemory, nil},
	}
}

// printHead writes what precedes the rows.
func (s *summary) printHead(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n\n| services x endpoints | mode |", s.title)
	for _, c := range columns() {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n|%s\n", strings.Repeat("---|", 2+len(columns())))
}

// add writes a row as soon as it is known, because a run may be interrupted.
func (s *summary) add(w io.Writer, c comparison, results map[string][]*result) {
	row := fmt.Sprintf("| %d x %d | %s |", c.services, c.endpoints, c.mode.name)
	for _, column := range columns() {
		row += " " + column.cell(results[upstream], results[ours]) + " |"
	}
	s.rows = append(s.rows, row)
	fmt.Fprintln(w, row)
}

// print writes the whole table in Markdown: upstream's figure, ours, and their ratio.
func (s *summary) print(w io.Writer) {
	if len(s.rows) > 0 {
		s.printHead(w)
		fmt.Fprintf(w, "%s\n\n", strings.Join(s.rows, "\n"))
	}
}

// cell is the figures of both proxies, and their ratio.
func (c column) cell(theirs, own []*result) string {
	left, right, more := mean(theirs, c.value), mean(own, c.value), ""
	if math.IsNaN(left) && c.limit != nil {
		left, more = mean(theirs, c.limit), "> "
	}
	if math.IsNaN(left) {
		more = ""
	}
	cell := more + textOf(left, c.text) + " / " + textOf(right, c.text)
	if r := left / right; !math.IsNaN(r) {
		cell += fmt.Sprintf(" (%s%.*fx)", more, digits(r), r)
	}
	return cell
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
