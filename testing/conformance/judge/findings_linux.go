package judge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/random"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// finding is one kind of difference, with its first example.
type finding struct {
	report.Result
	kind     string
	flows    int
	clusters map[int]bool
}

// known reports whether a finding of this kind exists, and counts the flow for it.
func (c *comparison) known(f *compared) bool {
	kind := f.kind()
	for _, old := range c.found {
		if old.kind == kind {
			old.flows++
			old.clusters[c.clusters] = true
			return true
		}
	}
	return false
}

func (c *comparison) add(kind string, r report.Result) {
	if slices.ContainsFunc(c.found, func(old *finding) bool { return old.Case == r.Case }) {
		r.Case += fmt.Sprintf(" (%d)", len(c.found)+1)
	}
	c.found = append(c.found, &finding{Result: r, kind: kind, flows: 1, clusters: map[int]bool{c.clusters: true}})
	c.say("found: %s", r.Case)
}

// explain reduces a flow's difference to the fewest objects and returns it as a result. It expects the original state
// to be applied, and leaves another.
func (c *comparison) explain(ctx context.Context, f *compared, sc random.Script) report.Result {
	r := report.Result{Case: f.title(c.Names), Profile: report.Comparison, Verdict: report.Failed}
	if f.alike() {
		r.Profile = report.Note
	}
	small, example := sc, f
	if began := time.Now(); began.Before(c.until) {
		small, example = c.shrunk(ctx, f, sc)
		if why := c.machine.Busy(began); why != "" {
			r.Why = "not reduced, " + why + "; "
			small, example = sc, f
		} else if example == nil {
			r.Why = "it could not be repeated with these objects alone, so it takes what happened before as well; "
			small, example = sc, f
		}
	} else {
		r.Why = "not reduced, the time was up; "
	}
	for _, reason := range example.Out.Reasons {
		if reason.Rule != "" && !slices.Contains(r.Rules, reason.Rule) {
			r.Rules = append(r.Rules, reason.Rule)
		}
	}
	if f.to == cluster.ToContestedAddress || f.to == cluster.ToListedNode {
		r.Rules = append(r.Rules, "S59") // the oracle accepts any owner, so it does not name this rule
	}
	r.Why += c.whoIsRight(example)
	r.Failures = []report.Failure{c.failure(example, small)}
	return r
}

// whoIsRight says which side agrees with the oracle.
func (c *comparison) whoIsRight(f *compared) string {
	_, one := f.wrong(0)
	_, other := f.wrong(1)
	switch {
	case one && other:
		return "neither is expected"
	case one:
		return "what " + c.Names[1] + " does is expected"
	case other:
		return "what " + c.Names[0] + " does is expected"
	}
	return "both may be right"
}

// failure returns a finding's example with its objects.
func (c *comparison) failure(f *compared, sc random.Script) report.Failure {
	side := 0
	seen, wrong := f.wrong(side)
	if !wrong {
		side = 1
		if seen, wrong = f.wrong(side); !wrong {
			seen = f.seen[1][slices.Sorted(maps.Keys(f.seen[1]))[0]]
		}
	}
	from, to, _ := strings.Cut(f.About, " to ")
	r := evidence.Compare(from, to, f.Out, seen.Observation, hostAt)
	if !wrong {
		r.Path = nil // no side is wrong anywhere
	} else if len(r.Path) > 0 {
		r.Path[0].Text += "; this is the path with " + c.Names[side]
	}
	var texts []string
	for i, name := range c.Names {
		texts = append(texts, name+": "+strings.Join(slices.Sorted(maps.Keys(f.seen[i])), ", or "))
	}
	r.Seen = strings.Join(texts, "\n")
	r.Objects = c.objects(sc)
	return r
}

// objects returns a script's objects as YAML, one state after the other.
func (c *comparison) objects(sc random.Script) string {
	var parts []string
	for i, st := range sc.Steps {
		objects, err := cluster.Objects(st.Services, c.sides[0].testbed.Program.Families)
		if err == nil && i == len(sc.Steps)-1 {
			objects = slices.Concat(c.sides[0].testbed.Program.Always, objects)
		}
		text, problem := evidence.Objects(objects)
		if err != nil || problem != nil {
			return fmt.Sprintf("# %v, %v\n", err, problem)
		}
		heading := "# How the node is configured: " + sc.Setup.String() + "\n"
		if len(sc.Steps) > 1 {
			heading += []string{"# First there is this:\n", "# Then this, in place of it:\n"}[i]
		}
		parts = append(parts, heading+text)
	}
	return strings.Join(parts, "---\n")
}

// compareShrinkTime limits the reduction of one finding.
const compareShrinkTime = time.Minute

// shrunk returns a smaller script with the same result for a flow, and that flow; or nil if the result does not recur.
func (c *comparison) shrunk(ctx context.Context, f *compared, sc random.Script) (small random.Script,
	example *compared) {
	ctx, cancel := context.WithTimeout(ctx, 2*compareShrinkTime)
	defer cancel()
	until := time.Now().Add(compareShrinkTime)
	if until.After(c.until) {
		until = c.until
	}
	kind := f.kind()
	again := func(sc random.Script) *compared {
		for _, st := range sc.Steps {
			if c.put(ctx, st.Services...) != nil {
				return nil
			}
		}
		g := &compared{to: f.to}
		if c.expect(g, f.Attempt) != nil {
			return nil
		}
		if _, err := c.tryAll(ctx, []*compared{g}, certain); err != nil || !g.remarkable() || g.kind() != kind {
			return nil
		}
		return g
	}
	// The reduction applies each state over the previous one. The final script must also reproduce the result on an
	// empty cluster.
	fresh := func(sc random.Script) *compared {
		if c.put(ctx) != nil {
			return nil
		}
		return again(sc)
	}
	small = random.Script{Setup: sc.Setup,
		Steps: sc.Edit(func(s cluster.Service) (cluster.Service, bool) { return s, s.Name == f.of }).Steps[1:]}
	if again(small) == nil {
		if small = sc; again(sc) == nil {
			return sc, nil
		}
	}
	small = random.Shrink(small, func(sc random.Script) bool { return time.Now().Before(until) && again(sc) != nil },
		c.tries)
	if example = fresh(small); example == nil {
		small, example = sc, fresh(sc)
	}
	return small, example
}

// report builds the report of the run.
func (c *comparison) report(err error) *report.Report {
	r := &report.Report{Kernel: kernel(), Seed: c.Seed, Machine: c.machine.Summary()}
	if err != nil {
		r.Problem = err.Error() // it names the program
		_, r.Log = problemOf(err)
	}
	for _, f := range c.found {
		if f.Failures[0].Flow != nil {
			f.Why += fmt.Sprintf("; %d of %d flows ended like this, in %d of %d clusters", f.flows, c.flows, len(f.clusters),
				c.done)
		}
		r.Results = append(r.Results, f.Result)
	}
	all := report.Result{Case: fmt.Sprintf("%d flows in %d random clusters", c.flows, c.done),
		Profile: report.Comparison, Verdict: report.Passed}
	early := cmp.Or(c.whyNotJudged, endedEarly)
	switch {
	case c.done == 0:
		all.Verdict, all.Why, all.Interrupted = report.NotRun, early, true
	case len(c.found) > 0:
		all.Case += ", but for what is different"
	}
	r.Results = append(r.Results, all)
	if c.notJudged > 0 {
		r.Results = append(r.Results, report.Result{Case: fmt.Sprintf("differences in %d more clusters", c.notJudged),
			Profile: report.Comparison, Verdict: report.NotJudged, Why: c.whyNotJudged})
	}
	for _, s := range c.sides {
		tidy := report.Result{Case: "clean-up of " + s.name + " leaves nothing", Profile: report.Comparison,
			Verdict: report.Passed}
		switch {
		case s.left != nil:
			tidy.Verdict, tidy.Why = report.Failed, "something is left"
			tidy.Failures = []report.Failure{{Seen: s.left.Error()}}
		case !s.Cleans:
			tidy.Verdict, tidy.Why = report.NotRun, "there is no command that cleans up"
		case !s.tidied && s.untidied != "":
			tidy.Verdict, tidy.Why = report.NotJudged, s.untidied
		case !s.tidied:
			tidy.Verdict, tidy.Why = report.NotRun, early
		}
		r.Results = append(r.Results, tidy)
	}
	return r
}
