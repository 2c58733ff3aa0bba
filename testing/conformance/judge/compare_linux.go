package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/random"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Compare runs two programs, each on its own node, with the same random clusters, makes the same connections on both,
// and reports each kind of difference once: another endpoint, another source, or no connection. It reduces each
// difference to the fewest objects. A result that both programs share, but that the oracle does not expect, is a note.
//
// Compare needs what [Test] needs. A program that fails or never becomes ready is part of the report, not an error. An
// error means that nothing could be tried. The report's fields about the implementations and the suite are empty.
func Compare(ctx context.Context, proxies [2]program.Proxy, o CompareOptions) (*report.Report, error) {
	c, err := newComparison(proxies, o)
	if err != nil {
		return nil, err
	}
	err = c.run(ctx)
	return c.report(err), ctx.Err()
}

func newComparison(proxies [2]program.Proxy, o CompareOptions) (*comparison, error) {
	o.Clusters = cmp.Or(o.Clusters, defaultClusters)
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	c := &comparison{CompareOptions: o, until: time.Now().Add(cmp.Or(o.Time, defaultTime)), tries: programShrinkTries}
	for i, p := range proxies {
		p.Lacks = slices.Concat(proxies[0].Lacks, proxies[1].Lacks)
		j, err := newJudging(p, Options{Seed: o.Seed, StartTimeout: o.StartTimeout,
			EvenIfBusy: o.EvenIfBusy})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Names[i], err)
		}
		c.sides[i] = &side{lane: &lane{judging: j}, name: o.Names[i]}
	}
	c.machine, c.sides[1].machine, c.sides[1].spent = c.sides[0].machine, c.sides[0].machine, c.sides[0].spent
	c.generator = random.NewGenerator(o.Seed, backend.Factory{Lacks: c.sides[0].lacks})
	c.generator.Contests = true
	return c, nil
}

type comparison struct {
	CompareOptions
	sides     [2]*side
	generator *random.Generator
	until     time.Time
	tries     int // limit for reducing a finding

	clusters     int // that were begun
	done, flows  int // clusters that were judged, and their flows
	refusals     int // consecutive configurations refused
	machine      *machine.Watch
	notJudged    int    // clusters that were not judged, and starts that failed on a busy machine
	whyNotJudged string // "" if there are none
	found        []*finding
}

// side is one of the programs, on its network.
type side struct {
	*lane
	name   string
	before []string // what the node had before the program started
	tidied bool     // clean-up was judged
	left   error    // what the clean-up left, nil if nothing
	// untidied says why what a clean-up left was not judged, "" if everything was.
	untidied string
}

// both calls do for both sides, concurrently.
func (c *comparison) both(do func(i int, s *side) error) error {
	var errs [2]error
	var wg sync.WaitGroup
	for i, s := range c.sides {
		wg.Go(func() {
			if err := do(i, s); err != nil {
				errs[i] = &sideError{s.name, err}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// sideError names the program that an error is about.
type sideError struct {
	name string
	error
}

func (e *sideError) Error() string {
	problem, _ := problemOf(e.error)
	return e.name + ": " + problem
}

func (e *sideError) Unwrap() error { return e.error }

// run tries all clusters.
func (c *comparison) run(ctx context.Context) error {
	return c.sides[0].withMachine(func() error { return c.tryAllClusters(ctx) })
}

func (c *comparison) tryAllClusters(ctx context.Context) error {
	fixed, err := c.fixedSetup(ctx)
	var busy *busyError
	if errors.As(err, &busy) {
		c.doNotJudge(busy.why, c.Clusters)
		return nil
	}
	for err == nil && c.more(ctx) {
		set := c.generator.Setup()
		switch {
		case fixed != nil:
			set = *fixed
		case c.clusters == 0:
			set = cluster.Setup{}
		}
		if err = c.episode(ctx, set); errors.As(err, &busy) && ctx.Err() == nil {
			c.doNotJudge(busy.why, 1)
			err = nil
		}
	}
	return err
}

// doNotJudge records that clusters were not judged.
func (c *comparison) doNotJudge(why string, clusters int) {
	c.notJudged += clusters
	c.whyNotJudged = why
	c.say("not judged: %s", why)
}

func (c *comparison) more(ctx context.Context) bool {
	return ctx.Err() == nil && max(c.clusters, c.notJudged) < c.Clusters && time.Now().Before(c.until)
}

func (c *comparison) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

// fixedSetup returns the configuration of a program that cannot be configured, or nil if both can. If neither can, and
// they differ, the first one counts.
func (c *comparison) fixedSetup(ctx context.Context) (fixed *cluster.Setup, err error) {
	for _, s := range slices.Backward(c.sides[:]) {
		if s.Configures {
			continue
		}
		if s.Assume == nil {
			s.base, err = s.observed(ctx)
			s.end()
			if err != nil {
				return nil, &sideError{s.name, err}
			}
			c.say("%s behaves like this: %v", s.name, s.base)
		}
		fixed = &s.base
	}
	return fixed, nil
}

// episode tries a few clusters in turn, with freshly started programs. If something goes wrong on a busy machine, the
// error is a busyError.
func (c *comparison) episode(ctx context.Context, set cluster.Setup) error {
	defer func() { _ = c.both(func(_ int, s *side) error { s.end(); return nil }) }()
	if err := c.both(func(_ int, s *side) error { return s.begin(ctx, set) }); err != nil {
		var busy *busyError
		if errors.As(err, &busy) {
			return err
		}
		return c.refused(ctx, set, err)
	}
	c.refusals = 0
	began := time.Now()
	err := c.tryClusters(ctx, set)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if why := c.machine.Busy(began); why != "" {
		return &busyError{why}
	}
	return err
}

// tryClusters tries the clusters of an episode, and then what the clean-up leaves behind.
func (c *comparison) tryClusters(ctx context.Context, set cluster.Setup) error {
	var services []cluster.Service
	for range random.EpisodeLength {
		if !c.more(ctx) {
			break
		}
		before := services
		services = c.generator.Next(services).Services
		c.clusters++
		sc := random.Script{Setup: set, Steps: []random.Step{{Services: before}, {Services: services}}}
		if err := c.cluster(ctx, sc, c.generator.TrialsOf(services, before, random.TrialsPerWave)); err != nil {
			return fmt.Errorf("cluster %d: %w", c.clusters, err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.both(func(_ int, s *side) error { return s.tidy(ctx) })
}

// refused records that a program does not start with a configuration. It returns any other error, and this one too if
// no cluster has been tried yet, or at the third refusal in a row.
func (c *comparison) refused(ctx context.Context, set cluster.Setup, err error) error {
	if c.refusals++; !isProgramError(err) || c.clusters == 0 || c.refusals == 3 || ctx.Err() != nil {
		return err
	}
	r := report.Result{Case: "both start with: " + set.String(), Profile: report.Comparison, Verdict: report.Failed,
		Why: "one does not", Failures: []report.Failure{{Seen: err.Error()}}}
	c.add(r.Case, r)
	return nil
}

// begin starts the program on a new network.
func (s *side) begin(ctx context.Context, set cluster.Setup) error {
	return s.start(ctx, false, func() (err error) {
		s.end()
		if err := s.prepare(ctx, set); err != nil {
			return err
		}
		if s.before, err = s.testbed.Inventory(ctx); err != nil {
			return err
		}
		return s.begun(ctx, set)
	})
}

// tidy stops the program and checks what its clean-up leaves behind. It keeps only the first such finding.
func (s *side) tidy(ctx context.Context) error {
	if !s.Cleans {
		return nil
	}
	began := time.Now()
	left := s.testbed.Cleanup(ctx)
	if left == nil {
		after, err := s.testbed.Inventory(ctx)
		if err != nil {
			return err
		}
		if diff := testbed.Difference(s.before, after); diff != "" {
			left = errors.New("the node after clean-up is not the node before the program:\n" + diff)
		}
	}
	if left != nil {
		if why := s.machine.Busy(began); why != "" {
			s.untidied = why
			return nil
		}
	}
	s.tidied, s.left = true, cmp.Or(s.left, left)
	return nil
}

func (c *comparison) put(ctx context.Context, services ...cluster.Service) error {
	return c.both(func(_ int, s *side) error { return s.testbed.Put(ctx, services...) })
}

// alive returns an error if a program has exited.
func (c *comparison) alive() error {
	return c.both(func(_ int, s *side) error {
		select {
		case <-s.testbed.Program.Host.Ended():
			return &testbed.ProgramError{Err: s.testbed.Program.Host.Failure()}
		default:
			return nil
		}
	})
}

// cluster applies the last state of a script, makes connections, and records differences.
func (c *comparison) cluster(ctx context.Context, sc random.Script, list []random.Trial) error {
	services := sc.Steps[1].Services
	if err := c.put(ctx, services...); err != nil {
		return err
	}
	flows, err := c.expand(list)
	if err != nil {
		return err
	}
	differ, err := c.judged(ctx, flows)
	var busy *busyError
	if errors.As(err, &busy) {
		c.doNotJudge(busy.why, 1)
		return errors.Join(ctx.Err(), c.alive())
	}
	if err != nil {
		return err
	}
	if err := errors.Join(ctx.Err(), c.alive()); err != nil {
		return err
	}
	c.done++
	c.flows += len(flows)
	c.say("cluster %d of %d: %d flows, %d end differently", c.clusters, c.Clusters, len(flows),
		len(slices.DeleteFunc(slices.Clone(differ), (*compared).alike)))
	reduced := false
	for _, f := range differ {
		if c.known(f) {
			continue
		}
		c.add(f.kind(), c.explain(ctx, f, sc))
		reduced = true
	}
	if reduced && ctx.Err() == nil {
		return c.put(ctx, services...)
	}
	return ctx.Err()
}

// judged returns the flows that end differently. If the machine was too busy at each of several tries, the error is a
// busyError.
func (c *comparison) judged(ctx context.Context, flows []*compared) ([]*compared, error) {
	for tries := 1; ; tries++ {
		began := time.Now()
		differ, err := c.differing(ctx, flows)
		if err != nil || len(differ) == 0 {
			return nil, err
		}
		why := c.machine.Busy(began)
		if why == "" && tries == 1 {
			why = c.machine.Shared(began)
		}
		if why == "" || ctx.Err() != nil {
			return differ, ctx.Err()
		}
		if tries == mostTries {
			return nil, &busyError{why}
		}
		c.say("%s, so the differences are sought again", why)
		c.machine.AwaitQuiet(ctx, c.sides[0].quietTimeout)
		for _, f := range flows {
			f.forget()
		}
	}
}

// expand returns the flows of trials, with the outcomes that the oracle expects in the applied state.
func (c *comparison) expand(list []random.Trial) ([]*compared, error) {
	b := c.sides[0].testbed
	var flows []*compared
	for _, tr := range list {
		for _, a := range tr.Attempts(b.Env.Families, b.Protocols()) {
			f := &compared{to: tr.To, of: tr.Service.Name}
			if err := c.expect(f, a); err != nil {
				return nil, err
			}
			flows = append(flows, f)
		}
	}
	return flows, nil
}

// expect resets f to an untried flow, with what the oracle expects in the applied state.
func (c *comparison) expect(f *compared, a network.Attempt) error {
	list, err := c.sides[0].testbed.Expect([]network.Attempt{a})
	if err != nil {
		return err
	}
	f.Expectation = list[0]
	f.forget()
	return nil
}
