package benchmarks

import (
	"fmt"
	"io"
	"math"
	"os"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// envGoals names the variable that makes a missed goal an error if it is 1: for a release, on a machine that does
// nothing else.
const envGoals = "KPL_GOALS"

// goal is a goal of this project for a comparison: at least a ratio of upstream's figure to ours, or at most a figure
// of ours.
type goal struct {
	what    string
	value   func(*report.SpeedRun) float64
	limit   float64
	atLeast bool
}

// goals are set so that a run on a machine that does nothing else reaches them against Kubernetes 1.37.
func (c comparison) goals() (goals []goal) {
	ratio := func(what string, value func(*report.SpeedRun) float64, limit float64) {
		goals = append(goals, goal{what + ", upstream / ours", value, limit, true})
	}
	own := func(what string, value func(*report.SpeedRun) float64, limit float64) {
		goals = append(goals, goal{what, value, limit, false})
	}
	const began, changed = "start to every service reached", "p50 of a change"
	switch c.mode.name + " " + c.Size.String() {
	case "nftables 1000x10":
		ratio(began, start, 1.5)
		ratio(changed, change, 3)
	case "nftables 5000x10":
		ratio(began, start, 4)
		ratio(changed, change, 8)
	case "nftables 10000x10":
		ratio(began, start, 10)
		ratio(changed, change, 15)
		ratio("peak memory", memory, 2)
		own(changed+", ms", change, 20)
		own("p50 of ten changes a second, ms", p50(10), 10)
		own("p99 of ten changes a second, ms", p99(10), 50)
		own("p99 of 100 changes a second, ms", p99(100), 50)
		own("processor time of 100 changes a second, % of a processor", share(100), 15)
		own("p99 of 1,000 changes a second, ms", p99(1000), 100)
		own("p50 of 100 changes at once, ms", burst, 150)
		own("listing beside ten changes a second, ms", listing, 60_000)
	case "nftables 5000x50":
		ratio(began, start, 3)
		ratio("peak memory", memory, 2)
	case "nftables 44000x1":
		ratio(began, start, 1.2)
		ratio("peak memory", memory, 2)
	case "iptables-nft 5000x10":
		own(began+", ms", start, 10_000)
		own(changed+", ms", change, 50)
	case "iptables-legacy 5000x10":
		ratio(began, start, 1)
		ratio(changed, change, 4)
		ratio("processor time of a change", changeCPU, 4)
	}
	if c.mode.name == "nftables" && c.Endpoints == 10 {
		ratio("p50 of 100 changes at once", burst, 1)
	}
	if c.Services == 5000 {
		own("processor time at rest, % of a processor", atRest, 0.05)
	}
	return goals
}

// printGoals prints whether each goal holds, and returns those that do not.
func printGoals(w io.Writer, c comparison, f figures) (missed []string) {
	for _, g := range c.goals() {
		v := f.of(ours, g.value)
		word, holds := "at most", v <= g.limit
		if g.atLeast {
			v = f.of(upstream, g.value) / v
			word, holds = "at least", v >= g.limit
		}
		verdict := "holds"
		if !holds || math.IsInf(v, 0) { // nor if there is no figure
			verdict = "MISSED"
		}
		line := fmt.Sprintf("goal: %s: %s %v: %.2f, %s", g.what, word, g.limit, v, verdict)
		fmt.Fprintln(w, line)
		if verdict == "MISSED" {
			missed = append(missed, line)
		}
	}
	return missed
}

// demand makes each missed goal an error if envGoals is set.
func demand(t assert.TestingT, missed []string) {
	if os.Getenv(envGoals) != "1" {
		return
	}
	for _, line := range missed {
		t.Errorf("%s", line)
	}
}
