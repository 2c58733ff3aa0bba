package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/speed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Run runs the suite against a program and returns the result of each case. It needs what [Test] needs. A program
// that fails or never becomes ready is part of the report, not an error. An error means that nothing could be tried.
// The report's fields about the implementation and the suite are empty.
func Run(ctx context.Context, p program.Proxy, o Options) (*report.Report, error) {
	j, err := newJudging(p, o)
	if err != nil {
		return nil, err
	}
	return j.judge(ctx)
}

func (j *judging) judge(ctx context.Context) (*report.Report, error) {
	j.choose()
	if len(j.queue) == 0 && len(j.Sizes) == 0 {
		return nil, fmt.Errorf("there is no case to run: %s", j.whyNone())
	}
	var measured *report.Speed
	err := j.withMachine(func() error {
		if err := j.run(ctx); err != nil {
			return err
		}
		measured = j.measureSpeed(ctx, speed.DefaultPlan())
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := j.report()
	if measured != nil && r.Speed != nil {
		measured.Runs = append(r.Speed.Runs, measured.Runs...)
	}
	if measured != nil {
		r.Speed = measured
	}
	return r, ctx.Err()
}

// newJudging derives a run's settings from the program's description.
func newJudging(p program.Proxy, o Options) (*judging, error) {
	families, err := network.Families()
	if err != nil {
		return nil, fmt.Errorf("the judge needs the right to make network namespaces, as root or under unshare -rn: %w", err)
	}
	f := backend.Factory{New: func(context.Context, backend.Env) (sink.Sink, error) { return nil, nil }}
	for _, name := range p.Lacks {
		f.Lacks = append(f.Lacks, backend.Feature(name))
	}
	if len(families) == 1 && !f.LacksFeature(backend.IPv6) {
		f.Lacks = append(f.Lacks, backend.IPv6)
	}
	if err := cases.Check(f); err != nil {
		return nil, err
	}
	o.Lanes = cmp.Or(o.Lanes, defaultLanes)
	o.StartTimeout = cmp.Or(o.StartTimeout, defaultStartTimeout)
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	timeouts, err := testbed.TimeoutsHere()
	if err != nil {
		return nil, err
	}
	j := &judging{Proxy: p, Options: o, lacks: f.Lacks, families: families, timeouts: timeouts,
		figures: &testbed.Figures{},
		spent:   &testbed.Spending{}, quietTimeout: defaultQuietTimeout}
	j.figures.WithoutExternal.Store(f.LacksFeature(backend.ExternalIPs))
	source := machine.Here(j.spent.Total)
	source.NeverBusy = o.EvenIfBusy
	j.machine = machine.New(source)
	if p.Assume != nil {
		if j.base, err = setupOf(*p.Assume); err != nil {
			return nil, err
		}
	}
	for _, size := range o.Sizes {
		if err := size.Validate(); err != nil {
			return nil, err
		}
	}
	for _, rate := range o.Rates {
		if err := ValidRate(rate); err != nil {
			return nil, err
		}
	}
	if len(o.Rates) == 0 {
		j.Rates = []int{10}
	}
	return j, nil
}

// judging is one run of the suite against a program.
type judging struct {
	program.Proxy
	Options
	lacks    []backend.Feature
	families []model.Family
	timeouts testbed.Timeouts
	figures  *testbed.Figures
	spent    *testbed.Spending
	machine  *machine.Watch
	// quietTimeout is how long another try waits for a quiet machine.
	quietTimeout time.Duration
	// base is the configuration of a program that cannot be configured.
	base cluster.Setup

	mu      sync.Mutex
	queue   []cases.Case // not started yet
	all     int
	results []report.Result
	problem error
	// usual is the setup of the first start, and failedStarts counts consecutive failures to become ready in it.
	usual        cluster.Setup
	failedStarts int
	// unbroken says why the program's rules cannot be removed, "" if they can.
	unbroken string
}

// choose fills the queue and reports the other cases as not run.
func (j *judging) choose() {
	var list []cases.Case
	for _, c := range cases.BySetup(slices.Concat(cases.All(), cases.ForPrograms())) {
		if !c.Stepwise && (!j.CoreOnly || c.Profile().Profile == report.Core) {
			list = append(list, c)
		}
	}
	j.all = len(list)
	for _, c := range list {
		verdict, why := j.reasonNotToRun(c)
		if why == "" {
			j.queue = append(j.queue, c)
			continue
		}
		j.add(result(c, verdict, why))
	}
}

// reasonNotToRun returns why a case is not run, or "".
func (j *judging) reasonNotToRun(c cases.Case) (report.Verdict, string) {
	if j.Run != nil && !j.Run.MatchString(c.Name) {
		return report.NotRun, notSelected
	}
	for _, feature := range c.Needs {
		if slices.Contains(j.lacks, feature) {
			return report.Unsupported, "the program is said to lack " + string(feature)
		}
	}
	switch {
	case c.Hook == cases.BreakHook && !j.Breaks:
		return report.NotRun, "there is no command that breaks the program's rules"
	case c.Hook == "Cleanup" && !j.Cleans:
		return report.NotRun, "there is no command that cleans up"
	case c.Outage && !j.Outages:
		return report.NotRun, "the API server cannot be taken away"
	case c.Setup != (cluster.Setup{}) && !j.Configures:
		return report.NotRun, "the program cannot be configured for it: " + c.Setup.String()
	}
	if why := c.MissingHere(); why != "" {
		return report.NotRun, why
	}
	return "", ""
}

const notSelected = "it was not selected"

func result(c cases.Case, v report.Verdict, why string) report.Result {
	p := c.Profile()
	rules := strings.FieldsFunc(c.Rules, func(r rune) bool { return r == ',' || r == ' ' })
	return report.Result{Case: c.Name, Rules: rules, Profile: p.Profile, Feature: p.Feature,
		Verdict: v, Why: why}
}

// add records a result.
func (j *judging) add(r report.Result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.results = append(j.results, r)
	if j.Progress != nil {
		j.Progress(r, j.all)
	}
}

func (j *judging) say(format string, args ...any) {
	if j.Say != nil {
		j.Say(fmt.Sprintf(format, args...))
	}
}

// whyNone returns why the run has no cases.
func (j *judging) whyNone() string {
	for _, r := range j.results {
		if r.Why != notSelected {
			return fmt.Sprintf("%q: %s", r.Case, r.Why)
		}
	}
	return fmt.Sprintf("none is selected by the pattern %q", j.Run)
}

// run starts the program, then runs the queue's cases with several workers. An error means that nothing could be tried.
func (j *judging) run(ctx context.Context) error {
	if len(j.queue) == 0 {
		return nil
	}
	first := &lane{judging: j}
	if err := first.begin(ctx); err != nil {
		defer first.end()
		var busy *busyError
		switch {
		case ctx.Err() != nil: // the report lists the cases as not run
			return nil
		case errors.As(err, &busy):
			j.judgeNone(busy.why)
			return nil
		case first.reasonToLeaveOut(err) != "":
			return err
		}
		j.problem = err
		return nil
	}
	var wg sync.WaitGroup
	for i, k := range j.lanes() {
		l := first
		if i > 0 {
			l = &lane{judging: j}
		}
		l.kind = k
		wg.Go(func() {
			defer l.end()
			l.work(ctx)
		})
	}
	wg.Wait()
	return nil
}

// laneKind selects the cases that a worker runs.
type laneKind int

const (
	allCases laneKind = iota
	noOutages
	outagesOnly
)

func (k laneKind) runs(c cases.Case) bool { return k == allCases || c.Outage == (k == outagesOnly) }

// lanes returns the kinds of workers that run the queue. In an outage a program mostly waits before it reconnects, so
// each outage case gets an additional worker, unless only one is requested.
func (j *judging) lanes() []laneKind {
	if j.Lanes == 1 {
		return []laneKind{allCases}
	}
	var outages int
	for _, c := range j.queue {
		if c.Outage {
			outages++
		}
	}
	return append(slices.Repeat([]laneKind{noOutages}, min(j.Lanes, len(j.queue)-outages)),
		slices.Repeat([]laneKind{outagesOnly}, outages)...)
}

// next takes a case for a worker of a kind from the queue, preferably one with the worker's current setup.
func (j *judging) next(k laneKind, now *cluster.Setup) (c cases.Case, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.IndexFunc(j.queue, func(c cases.Case) bool { return k.runs(c) && now != nil && c.Setup == *now })
	if i < 0 {
		i = slices.IndexFunc(j.queue, k.runs)
	}
	if i < 0 || j.problem != nil {
		return c, false
	}
	c = j.queue[i]
	j.queue = slices.Delete(j.queue, i, i+1)
	return c, true
}

const (
	defaultLanes        = 4
	defaultStartTimeout = time.Minute
	defaultClusters     = 60
	defaultTime         = 5 * time.Minute
)
