package benchmarks

import (
	"fmt"
	"io"
	"math"
	"os"

	"github.com/stretchr/testify/assert"
)

// envGoals names the variable that makes a missed goal an error if it is 1: for a release, on a machine that does
// nothing else.
const envGoals = "KPL_GOALS"

// goal is a goal of this project for a comparison: a figure of ours, or its ratio to upstream's, and a limit.
type goal struct {
	what    string
	value   func(theirs, own means) float64
	limit   float64
	atLeast bool // else at most
}

// means returns the mean of a figure over all rounds of a proxy.
type means func(func(*result) float64) float64

func meansOf(rounds []*result) means {
	return func(value func(*result) float64) float64 { return mean(rounds, value) }
}

// ratio is upstream's figure as a multiple of ours.
func ratio(value func(*result) float64) func(theirs, own means) float64 {
	return func(theirs, own means) float64 { return theirs(value) / own(value) }
}

// goals are set so that a run on a machine that does nothing else reaches them against Kubernetes 1.37.
func (c comparison) goals() (goals []goal) {
	add := func(g ...goal) { goals = append(goals, g...) }
	switch {
	case c.mode.proxyMode == "nftables":
		add(c.nftablesGoals()...)
	case c.mode.iptables != "" && c.services == 5000:
		add(c.iptablesGoals()...)
	}
	if c.atRest {
		// Ticks of 10 ms do not distinguish none from little: a tick may complete what was used before.
		add(goal{"processor time at rest, % of a processor", func(_, own means) float64 {
			return own(idleCPU) / ms(idleFor) * 100
		}, 0.05, false})
	}
	return goals
}

func (c comparison) nftablesGoals() []goal {
	start := func(limit float64) goal {
		return goal{"start to every service reached, upstream / ours", ratio(untilAllOrLimit), limit, true}
	}
	change := func(limit float64) goal { return goal{"p50 of a change, upstream / ours", ratio(p50), limit, true} }
	memory := goal{"peak memory with children, upstream / ours", ratio(peaks), 2, true}
	switch c.shape() {
	case "1000x10":
		return []goal{start(1.5), change(3), {"start to the first packet, upstream / ours",
			ratio(func(r *result) float64 { return ms(r.first) }), 1, true}}
	case "5000x10":
		return []goal{start(4), change(8)}
	case "10000x10":
		return []goal{start(10), change(15), memory,
			{"p50 of a change, ms", func(_, own means) float64 { return own(p50) }, 20, false}}
	case "5000x50":
		return []goal{start(3), memory}
	case "44000x1": // most of the start is the API server's
		return []goal{start(1.2), memory}
	}
	return nil
}

func (c comparison) iptablesGoals() []goal {
	connections := goal{"new connections, slowest / fastest service", func(_, own means) float64 {
		return own(func(r *result) float64 { return ms(r.slowest) }) / own(
			func(r *result) float64 { return ms(r.fastest) })
	}, 1.5, false}
	if c.mode.iptables == "nft" { // upstream does not start within the limit
		return []goal{
			connections,
			{"start to every service reached, s", func(_, own means) float64 { return own(untilAll) / 1000 }, 10, false},
			{"p50 of a change, ms", func(_, own means) float64 { return own(p50) }, 50, false},
		}
	}
	return []goal{
		connections,
		{"p50 of a change, upstream / ours", ratio(p50), 4, true},
		{"processor time of a change, upstream / ours", ratio(func(r *result) float64 { return ms(r.changeCPU) }), 4, true},
		{"rules, upstream / ours", ratio(ruleCount), 3, true},
		{"start to every service reached, upstream / ours", ratio(untilAll), 1, true},
	}
}

func p50(r *result) float64      { return ms(percentile(r.changes, 50)) }
func untilAll(r *result) float64 { return ms(r.all) }

// untilAllOrLimit is what the start took, or the limit that it exceeded.
func untilAllOrLimit(r *result) float64 { return ms(max(r.all, r.startLimit)) }

// printGoals prints whether each goal holds, and returns those that do not.
func printGoals(w io.Writer, c comparison, results map[string][]*result) (missed []string) {
	for _, g := range c.goals() {
		v := g.value(meansOf(results[upstream]), meansOf(results[ours]))
		word, holds := "at most", v <= g.limit
		if g.atLeast {
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
