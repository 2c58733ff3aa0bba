package conformance

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

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Judge runs the suite against a program, and returns what became of each case. It needs what [Test] needs. A program
// that fails, or that never becomes ready, is no error: the report says so. An error means that nothing could be tried.
// The fields of the report about the implementation and the suite are empty.
func Judge(ctx context.Context, p Proxy, o JudgeOptions) (*report.Report, error) {
	j, err := newJudging(p, o)
	if err != nil {
		return nil, err
	}
	j.choose()
	if len(j.queue) == 0 && len(o.Sizes) == 0 {
		return nil, fmt.Errorf("there is no case to run: %s", j.whyNone())
	}
	if err := j.run(ctx); err != nil {
		return nil, err
	}
	speed := j.measureSpeed(ctx, defaultSpeedPlan())
	r := j.report()
	if speed != nil && r.Speed != nil {
		speed.Runs = append(r.Speed.Runs, speed.Runs...)
	}
	if speed != nil {
		r.Speed = speed
	}
	return r, ctx.Err()
}

// newJudging returns what is known of a program before it runs.
func newJudging(p Proxy, o JudgeOptions) (*judging, error) {
	families, err := network.Families()
	if err != nil {
		return nil, fmt.Errorf("the judge needs the right to make network namespaces, as root or under unshare -rn: %w", err)
	}
	f := Factory{Lacks: p.Lacks, New: func(context.Context, Env) (sink.Sink, error) { return nil, nil }}
	if len(families) == 1 && !f.lacks(IPv6) {
		f.Lacks = append(slices.Clone(f.Lacks), IPv6)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	o.Lanes = cmp.Or(o.Lanes, defaultLanes)
	o.StartTimeout = cmp.Or(o.StartTimeout, defaultStartTimeout)
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	j := &judging{Proxy: p, JudgeOptions: o, lacks: f.Lacks, families: families, figures: &figures{}}
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
	return j, nil
}

// judging is one run of the suite against a program.
type judging struct {
	Proxy
	JudgeOptions
	lacks    []Feature
	families []model.Family
	figures  *figures
	// base is how a program is configured that is always started in one way.
	base setup

	mu      sync.Mutex
	queue   []testCase // not begun yet
	all     int
	results []report.Result
	problem error
	// usual is the setup that the program is started in at first, and failedStarts counts the programs in turn that did
	// not become ready in it.
	usual        setup
	failedStarts int
}

// choose fills the queue, and reports the cases that are not run.
func (j *judging) choose() {
	var list []testCase
	for _, c := range bySetup(cases()) {
		if !c.stepwise && (!j.CoreOnly || c.profile().Profile == report.Core) {
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

// reasonNotToRun returns why a case is not run, "" if it is.
func (j *judging) reasonNotToRun(c testCase) (report.Verdict, string) {
	if j.Run != nil && !j.Run.MatchString(c.name) {
		return report.NotRun, notSelected
	}
	for _, feature := range c.needs {
		if slices.Contains(j.lacks, feature) {
			return report.Unsupported, "the program is said to lack " + string(feature)
		}
	}
	switch {
	case c.hook == "Break" && !j.Breaks:
		return report.NotRun, "there is no command that breaks the program's rules"
	case c.hook == "Cleanup" && !j.Cleans:
		return report.NotRun, "there is no command that cleans up"
	case c.setup != (setup{}) && !j.Configures:
		return report.NotRun, "the program cannot be configured for it: " + c.setup.String()
	}
	return "", ""
}

const notSelected = "it was not selected"

func result(c testCase, v report.Verdict, why string) report.Result {
	p := c.profile()
	return report.Result{Case: c.name, Rules: report.RuleList(c.rules), Profile: p.Profile, Feature: p.feature,
		Verdict: v, Why: why}
}

// add takes down a result.
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

// whyNone returns why no case is run.
func (j *judging) whyNone() string {
	for _, r := range j.results {
		if r.Why != notSelected {
			return fmt.Sprintf("%q: %s", r.Case, r.Why)
		}
	}
	return fmt.Sprintf("none is selected by the pattern %q", j.Run)
}

// run starts the program, and then works on the queue in several lanes. An error says why nothing could be tried.
func (j *judging) run(ctx context.Context) error {
	if len(j.queue) == 0 {
		return nil
	}
	first := &lane{judging: j}
	if err := first.begin(ctx); err != nil {
		defer first.end()
		switch {
		case ctx.Err() != nil: // the report has that all cases were not run
			return nil
		case first.reasonToLeaveOut(err) != "":
			return err
		}
		j.problem = err
		return nil
	}
	var wg sync.WaitGroup
	for i := range min(j.Lanes, len(j.queue)) {
		l := first
		if i > 0 {
			l = &lane{judging: j}
		}
		wg.Go(func() {
			defer l.end()
			l.work(ctx)
		})
	}
	wg.Wait()
	return nil
}

// next takes a case from the queue: the next one in the setup of the lane, or in any.
func (j *judging) next(now *setup) (c testCase, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 || j.problem != nil {
		return c, false
	}
	i := 0
	if now != nil {
		i = max(0, slices.IndexFunc(j.queue, func(c testCase) bool { return c.setup == *now }))
	}
	c = j.queue[i]
	j.queue = slices.Delete(j.queue, i, i+1)
	return c, true
}

// lane judges one case after the other on a network of its own.
type lane struct {
	*judging
	session *session // nil: none
	// asked is the setup that the cases ask for, which differs from the session's if the program cannot be configured.
	asked setup
}

// begin starts the program, and finds out how it is configured if nobody says so.
func (l *lane) begin(ctx context.Context) error {
	set := l.base
	if l.Configures {
		set = l.queue[0].setup
	}
	l.usual = set
	if err := l.open(ctx, set); err != nil {
		return err
	}
	l.asked = l.queue[0].setup
	l.say("the program is ready after %v", l.figures.starts[0].Round(10*time.Millisecond))
	if l.Configures || l.Assume != nil {
		return nil
	}
	found, err := l.session.observe(ctx)
	if err != nil {
		return err
	}
	l.say("it behaves like this: %v", found)
	l.base = found
	l.end()
	return l.open(ctx, found)
}

// open makes a network with a running program.
func (l *lane) open(ctx context.Context, set setup) error {
	if err := l.prepare(ctx, set); err != nil {
		return err
	}
	return l.begun(ctx, set)
}

// begun starts the program on the lane's network.
func (l *lane) begun(ctx context.Context, set setup) error {
	if err := l.session.start(ctx, set); err != nil {
		return err
	}
	return l.session.put(ctx)
}

// placeError says that there is no place to run the program in, which says nothing about the program.
type placeError struct{ error }

func (e *placeError) Unwrap() error { return e.error }

// prepare makes a network on which the program does not run yet.
func (l *lane) prepare(ctx context.Context, set setup) error {
	if err := l.place(ctx, set); err != nil {
		return &placeError{err}
	}
	return nil
}

func (l *lane) place(ctx context.Context, set setup) (err error) {
	f := Factory{Lacks: l.lacks, RepairsItself: true}
	patience, err := patienceHere()
	if err != nil {
		return err
	}
	patience.Answer, patience.repair = patience.Answer/5, 2*patience.repair
	n, err := network.New(l.families, l.Seed+rand.Uint64N(1<<20))
	if err != nil {
		return err
	}
	s, err := newSessionOn(n, f, patience, l.Seed)
	if err != nil {
		return err
	}
	l.session = s
	env := set.env(f.families())
	env.ID, env.NetNS = s.id, n.Node.File
	p := &program{try: n.Try, families: env.Families, figures: l.figures, startTimeout: l.StartTimeout,
		silence: patience.Answer / 2, always: append(set.objects(env.Families), otherNodes(env.Families)...)}
	p.describe(nil)
	err = s.host.Do(func() (err error) {
		p.host, err = l.Open(ctx, env, set.configuration(env.Families))
		return err
	})
	if err != nil {
		s.close()
		l.session = nil
		return fmt.Errorf("prepare the program: %w", err)
	}
	s.program = p
	s.factory.New = func(context.Context, Env) (sink.Sink, error) { return p, nil }
	s.factory.Dump = func(ctx context.Context, _ Env) (string, error) { return p.host.Dump(ctx) }
	if l.Cleans {
		s.factory.Cleanup = func(ctx context.Context, _ Env) error { return p.host.Cleanup(ctx) }
	}
	if l.Breaks {
		s.factory.Break = func(ctx context.Context, _ Env) error { return p.host.Break(ctx) }
	}
	return nil
}

// end stops the program and takes the network down.
func (l *lane) end() {
	s := l.session
	if l.session = nil; s == nil {
		return
	}
	if s.sink != nil {
		_ = s.drop()
	}
	s.program.host.Close()
	s.close()
}

// work judges cases until there are none left.
func (l *lane) work(ctx context.Context) {
	for ctx.Err() == nil {
		var now *setup
		if l.session != nil {
			now = &l.asked
		}
		c, ok := l.next(now)
		if !ok {
			return
		}
		r, whole := l.judgeCase(ctx, c)
		if ctx.Err() != nil {
			l.add(result(c, report.NotRun, endedEarly))
			return
		}
		l.add(r)
		// The state of the node is unknown now; or a program that has not met its API server may wait for long before it
		// tries again.
		if r.Verdict == report.Failed || r.Verdict == report.NotRun || l.disturbed() != nil {
			l.end()
		}
		l.noteStart(c.setup, whole)
	}
}

// noteStart notes whether the program became ready. After three that did not in turn there is nothing to judge. One that
// refuses to be configured for a case fails that alone.
func (l *lane) noteStart(set setup, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.Configures && set != l.usual {
		return
	}
	if err == nil {
		l.failedStarts = 0
		return
	}
	if l.failedStarts++; l.failedStarts == 3 {
		l.problem = err
	}
}

// judgeCase judges a case. whole is an error about the program as a whole.
func (l *lane) judgeCase(ctx context.Context, c testCase) (r report.Result, whole error) {
	began := time.Now()
	_ = l.disturbed()
	err := l.try(ctx, c)
	r = result(c, report.Passed, "")
	if why := l.reasonToLeaveOut(err); why != "" {
		r.Verdict, r.Why, r.Elapsed = report.NotRun, why, time.Since(began)
		return r, nil
	}
	switch s := l.session; {
	case err != nil:
		r.Verdict, r.Why = report.Failed, "it did not happen as it should"
		r.Failures, r.More = failuresOf(err)
		if isProgramError(err) {
			r.Why, whole = "the program was not there", err
		}
		if s != nil {
			r.Ruleset = s.dump(ctx)
			l.explain(ctx, &r, err)
		}
	case s.program.late:
		r.Verdict, r.Why = report.Slow, "something was right only after a while"
	}
	r.Elapsed = time.Since(began)
	return r, whole
}

// reasonToLeaveOut returns why an error of a case says nothing about the program, "" if it does.
func (l *lane) reasonToLeaveOut(err error) string {
	if err == nil {
		return ""
	}
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Error()
	}
	var place *placeError
	if errors.As(err, &place) {
		return place.Error()
	}
	if err := l.disturbed(); err != nil {
		return fmt.Sprintf("the API server was away: %v", err)
	}
	return ""
}

// disturbed returns why what has happened since it was called last says nothing about the program.
func (l *lane) disturbed() error {
	if l.session == nil {
		return nil
	}
	if h, ok := l.session.program.host.(interface{ Disturbed() error }); ok {
		return h.Disturbed()
	}
	return nil
}

// restarts is how often a case starts the program again, at most.
const restarts = 4

// try runs a case, on the lane's program if that has the right setup.
func (l *lane) try(ctx context.Context, c testCase) error {
	if l.session != nil && l.asked != c.setup {
		l.end()
	}
	if l.session == nil {
		set := l.base
		if l.Configures {
			set = c.setup
		}
		if err := l.open(ctx, set); err != nil {
			return err
		}
		l.asked = c.setup
	}
	ctx, cancel := context.WithTimeout(ctx, caseTimeout+restarts*l.StartTimeout)
	defer cancel()
	s := l.session
	s.program.late = false
	if !c.continues && len(s.told.services) > 0 {
		if err := s.put(ctx); err != nil {
			return fmt.Errorf("remove the services of the case before: %w", err)
		}
	}
	return c.run(ctx, s)
}

// otherNodes are the Nodes besides the one under test, whose routes a program may want to know.
func otherNodes(families []model.Family) []metav1.Object {
	var list []metav1.Object
	for _, name := range []string{otherNode, thirdNode} {
		list = append(list, nodeObject(name, families))
	}
	return list
}

// endedEarly is why cases are not run that a run did not come to.
const endedEarly = "the run ended early"

// report returns what became of all cases.
func (j *judging) report() *report.Report {
	r := &report.Report{Kernel: kernel(), Seed: j.Seed}
	for _, c := range j.queue {
		j.add(result(c, report.NotRun, endedEarly))
	}
	r.Problem, r.Log = problemOf(j.problem)
	r.Results = j.results
	r.Absent()
	slices.SortStableFunc(r.Results, func(a, b report.Result) int { return strings.Compare(a.Case, b.Case) })
	r.Speed = j.figures.speed()
	return r
}

// problemOf returns what is wrong with a program as a whole, and the end of its log; "" if nothing is.
func problemOf(err error) (problem, log string) {
	if err == nil {
		return "", ""
	}
	problem = err.Error()
	var whole *programError
	if errors.As(err, &whole) {
		problem = whole.Error()
	}
	var logged interface{ Log() string }
	if errors.As(err, &logged) {
		log = logged.Log()
	}
	return problem, log
}

// kernel is the release of the kernel.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// speed returns the figures, nil if there are none.
func (f *figures) speed() *report.Speed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.starts) == 0 {
		return nil
	}
	run := report.SpeedRun{Start: milliseconds(slices.Min(f.starts)), CPU: milliseconds(f.processor), Memory: f.memory,
		Change: report.Latency{Count: len(f.waves)}}
	if len(f.waves) > 0 {
		sorted := slices.Sorted(slices.Values(f.waves))
		run.Change.P50, run.Change.P99 = milliseconds(sorted[len(sorted)/2]), milliseconds(sorted[len(sorted)*99/100])
	}
	return &report.Speed{Runs: []report.SpeedRun{run}}
}
