package benchmarks

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// result has the figures of a run of a proxy. Zero means not measured; the functions below know the exceptions.
type result struct {
	failed    error
	unsettled bool // the control plane was not idle before

	first, all time.Duration // since the start, until one service could be reached, and all
	startLimit time.Duration // all could not be reached by then, and nothing else was measured
	late       int           // services that could not be reached when the sample could
	startCPU   time.Duration
	busy       int // how often it did not become idle

	changes, writes  []time.Duration // one endpoint: until it is applied; how much of that the API server took to answer
	changeCPU        time.Duration
	burst, burstCPU  time.Duration
	ownKiB, childKiB int // peaks
	idleMeasured     bool
	idleCPU          time.Duration
	idleTicks        int           // of the process alone
	rules            int           // of iptables
	fastest, slowest time.Duration // new connections to services: the best median, and the worst
	direct           time.Duration // to a pod
}

// report makes the result one of Go's benchmarks.
func (r *result) report(b *testing.B) {
	b.ReportMetric(0, "ns/op") // it would mean nothing
	metric := func(d time.Duration, unit string) {
		if d > 0 {
			b.ReportMetric(float64(d.Microseconds())/1000, unit)
		}
	}
	metric(r.first, "first-ms")
	metric(r.all, "start-ms")
	metric(r.startCPU, "start-cpu-ms")
	if len(r.changes) > 0 {
		metric(percentile(r.changes, 50), "change-p50-ms")
		metric(slices.Max(r.changes), "change-max-ms")
	}
	metric(r.changeCPU, "change-cpu-ms")
	metric(r.burst, "burst-ms")
	metric(r.burstCPU, "burst-cpu-ms")
	if r.ownKiB > 0 {
		b.ReportMetric(mib(r.ownKiB), "peak-MiB")
		b.ReportMetric(mib(r.childKiB), "child-peak-MiB")
	}
	if r.idleMeasured {
		b.ReportMetric(float64(r.idleCPU.Microseconds())/1000, "idle-cpu-ms")
		b.ReportMetric(float64(r.idleTicks), "idle-ticks")
	}
	metric(r.fastest, "connect-fastest-ms")
	metric(r.slowest, "connect-slowest-ms")
}

// percentile returns the smallest value that p percent of the values do not exceed.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*p+99)/100-1]
}

// row is a line of the table: how to get a figure from a result, and how to show it.
type row struct {
	what  string
	value func(*result) float64 // NaN: not measured
	unit  string
}

// measured returns a figure that cannot be 0.
func measured(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

func ms(d time.Duration) float64 { return measured(inMS(d)) }

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Figures that can be 0: another field says whether they were measured.

// idleCPU is in ms.
func idleCPU(r *result) float64 {
	if !r.idleMeasured {
		return math.NaN()
	}
	return inMS(r.idleCPU)
}

// spread is how much slower the slowest service is than the fastest, in us.
func spread(r *result) float64 {
	if r.fastest == 0 {
		return math.NaN()
	}
	return inMS(r.slowest-r.fastest) * 1000
}

// biggestChild is in MiB: there need not be one.
func biggestChild(r *result) float64 {
	if r.ownKiB == 0 {
		return math.NaN()
	}
	return mib(r.childKiB)
}

// peaks is the peak of the process and that of its biggest child, in MiB.
func peaks(r *result) float64 { return measured(mib(r.ownKiB + r.childKiB)) }

func ruleCount(r *result) float64 { return measured(float64(r.rules)) }

func mib(kib int) float64 { return float64(kib) / 1024 }

func rows() []row {
	return []row{
		{what: "start to the first service reached", unit: "ms", value: func(r *result) float64 { return ms(r.first) }},
		{what: "start to every service reached", unit: "ms", value: untilAll},
		{what: "  processor time of that", unit: "ms", value: func(r *result) float64 { return ms(r.startCPU) }},
		{what: "one endpoint replaced, p50", unit: "ms", value: p50},
		{what: fmt.Sprintf("  slowest of at most %d", maxChanges), unit: "ms",
			value: func(r *result) float64 { return ms(percentile(r.changes, 100)) }},
		{what: "  of which the API server's answer, p50", unit: "ms",
			value: func(r *result) float64 { return ms(percentile(r.writes, 50)) }},
		{what: "  processor time of a change", unit: "ms", value: func(r *result) float64 { return ms(r.changeCPU) }},
		{what: fmt.Sprintf("%d endpoints replaced at once", burstSize), unit: "ms",
			value: func(r *result) float64 { return ms(r.burst) }},
		{what: "  processor time of that", unit: "ms", value: func(r *result) float64 { return ms(r.burstCPU) }},
		{what: "peak memory of the process", unit: "MiB",
			value: func(r *result) float64 { return measured(mib(r.ownKiB)) }},
		{what: "  of its biggest child", unit: "MiB", value: biggestChild},
		{what: "  of both", unit: "MiB", value: peaks},
		{what: "rules in iptables-save", value: ruleCount},
		{what: "new connection, fastest service", unit: "us",
			value: func(r *result) float64 { return ms(r.fastest) * 1000 }},
		{what: "  slowest service", unit: "us", value: func(r *result) float64 { return ms(r.slowest) * 1000 }},
		{what: "  difference of the two", unit: "us", value: spread},
		{what: "  straight to a pod", unit: "us", value: func(r *result) float64 { return ms(r.direct) * 1000 }},
	}
}

// mean is that of the rounds that have a figure, or NaN.
func mean(rounds []*result, value func(*result) float64) float64 {
	var sum, n float64
	for _, r := range rounds {
		if v := value(r); !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / n
}

// printTable prints the mean of all rounds, and upstream's as a multiple of ours. It returns the goals that are missed.
func printTable(w io.Writer, c comparison, version string, results map[string][]*result) (missed []string) {
	fmt.Fprintf(w, "\n%d services x %d endpoints, mode %s. %s\n", c.services, c.endpoints, c.mode.name, c.sequence())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintf(t, "\tkube-proxy %s\tkube-proxy-lib\tupstream / ours\t\n", version)
	for _, r := range rows() {
		theirs, own := mean(results[upstream], r.value), mean(results[ours], r.value)
		if math.IsNaN(theirs) && math.IsNaN(own) {
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", r.what, figure(theirs, r.unit), figure(own, r.unit),
			figure(theirs/own, ""))
	}
	_ = t.Flush()
	missed = printGoals(w, c, results)
	for _, proxy := range []string{upstream, ours} {
		for i, r := range results[proxy] {
			var notes []string
			if r.idleMeasured {
				notes = append(notes,
					fmt.Sprintf("at rest for %s: %d ticks, %.1f ms", idleFor, r.idleTicks, idleCPU(r)))
			}
			if r.unsettled {
				notes = append(notes,
					fmt.Sprintf("the control plane did not come to rest within %s before it", restLimit))
			}
			if r.late > 0 {
				notes = append(notes, fmt.Sprintf("%d services came after the others", r.late))
			}
			if r.busy > 0 {
				notes = append(notes, fmt.Sprintf("it did not come to rest within %s, %d times", quietLimit, r.busy))
			}
			if r.startLimit > 0 {
				notes = append(notes, fmt.Sprintf("not every service could be reached within %s", r.startLimit))
			}
			if r.failed != nil {
				notes = append(notes, "FAILED: "+r.failed.Error())
			}
			if len(notes) > 0 {
				fmt.Fprintf(w, "%s, round %d: %s\n", proxy, i+1, strings.Join(notes, "; "))
			}
		}
	}
	fmt.Fprintln(w)
	return missed
}

func figure(v float64, unit string) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
