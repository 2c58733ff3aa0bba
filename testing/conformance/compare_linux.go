package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Compare serves random clusters by two programs, each on a node of its own, makes the same connections on both, and
// reports what ends differently: where it arrives, with which source, or not at all. Each kind of difference is reported
// once, with the fewest objects that it takes. What both do, and the oracle does not expect, is a note.
//
// It needs what [Test] needs. A program that fails, or that never becomes ready, is no error: the report says so. An
// error means that nothing could be tried. The fields of the report about the implementations and the suite are empty.
func Compare(ctx context.Context, proxies [2]Proxy, o CompareOptions) (*report.Report, error) {
	c, err := newComparison(proxies, o)
	if err != nil {
		return nil, err
	}
	err = c.run(ctx)
	return c.report(err), ctx.Err()
}

func newComparison(proxies [2]Proxy, o CompareOptions) (*comparison, error) {
	o.Clusters = cmp.Or(o.Clusters, defaultClusters)
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	c := &comparison{CompareOptions: o, until: time.Now().Add(cmp.Or(o.Time, defaultTime)), tries: programShrinkTries}
	for i, p := range proxies {
		p.Lacks = slices.Concat(proxies[0].Lacks, proxies[1].Lacks)
		j, err := newJudging(p, JudgeOptions{Seed: o.Seed, StartTimeout: o.StartTimeout})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Names[i], err)
		}
		c.sides[i] = &side{lane: &lane{judging: j}, name: o.Names[i]}
	}
	c.generator = newGenerator(o.Seed, Factory{Lacks: c.sides[0].lacks})
	c.generator.contests = true
	return c, nil
}

// comparison is two programs side by side.
type comparison struct {
	CompareOptions
	sides     [2]*side
	generator *generator
	until     time.Time
	tries     int // at most so many, for reducing a finding

	clusters, flows int
	refusals        int // of configurations, in turn
	found           []*finding
}

// side is one of the programs, on its network.
type side struct {
	*lane
	name   string
	before []string // what was on the node before the program
	tidied bool     // clean-up was tried
	left   error    // nil: it left nothing
}

// both does something on both sides at the same time.
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

// sideError is about one of the programs.
type sideError struct {
	name string
	error
}

func (e *sideError) Error() string {
	problem, _ := problemOf(e.error)
	return e.name + ": " + problem
}

func (e *sideError) Unwrap() error { return e.error }

// run goes through the clusters.
func (c *comparison) run(ctx context.Context) error {
	fixed, err := c.fixedSetup(ctx)
	for err == nil && c.more(ctx) {
		set := c.generator.setup()
		switch {
		case fixed != nil:
			set = *fixed
		case c.clusters == 0:
			set = setup{}
		}
		err = c.episode(ctx, set)
	}
	return err
}

func (c *comparison) more(ctx context.Context) bool {
	return ctx.Err() == nil && c.clusters < c.Clusters && time.Now().Before(c.until)
}

func (c *comparison) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

// fixedSetup returns how the programs are configured if one of them is always started in one way, otherwise nil. If
// both are, and differently, the first one counts.
func (c *comparison) fixedSetup(ctx context.Context) (fixed *setup, err error) {
	for _, s := range slices.Backward(c.sides[:]) {
		if s.Configures {
			continue
		}
		if s.Assume == nil {
			err := s.open(ctx, setup{})
			if err == nil {
				s.base, err = s.session.observe(ctx)
			}
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

// episode goes through a few clusters, one after the other, with fresh programs.
func (c *comparison) episode(ctx context.Context, set setup) error {
	defer func() { _ = c.both(func(_ int, s *side) error { s.end(); return nil }) }()
	if err := c.both(func(_ int, s *side) error { return s.begin(ctx, set) }); err != nil {
		return c.refused(ctx, set, err)
	}
	c.refusals = 0
	var services []service
	for range episodeLength {
		if !c.more(ctx) {
			break
		}
		before := services
		services = c.generator.next(services).services
		c.clusters++
		sc := script{set, []scriptStep{{services: before}, {services: services}}}
		if err := c.cluster(ctx, sc, c.generator.trafficTo(services, before, flowsPerWave)); err != nil {
			return fmt.Errorf("cluster %d: %w", c.clusters, err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.both(func(_ int, s *side) error { return s.tidy(ctx) })
}

// refused takes down that a program does not start with a configuration. If none has started yet, or three times in turn, it
// is an error about the program.
func (c *comparison) refused(ctx context.Context, set setup, err error) error {
	if c.refusals++; !isProgramError(err) || c.clusters == 0 || c.refusals == 3 || ctx.Err() != nil {
		return err
	}
	r := report.Result{Case: "both start with: " + set.String(), Profile: report.Comparison, Verdict: report.Failed,
		Why: "one does not", Failures: []report.Failure{{Seen: err.Error()}}}
	c.add(r.Case, r)
	return nil
}

// begin starts the program on a new network.
func (s *side) begin(ctx context.Context, set setup) (err error) {
	if err := s.prepare(ctx, set); err != nil {
		return err
	}
	if s.before, err = s.session.inventory(ctx); err != nil {
		return err
	}
	return s.begun(ctx, set)
}

// tidy ends the program, and looks whether anything is left of it after its clean-up. The first thing that is left is
// kept.
func (s *side) tidy(ctx context.Context) error {
	if !s.Cleans {
		return nil
	}
	s.tidied = true
	left := s.session.cleanup(ctx)
	if left == nil {
		after, err := s.session.inventory(ctx)
		if err != nil {
			return err
		}
		if diff := difference(s.before, after); diff != "" {
			left = errors.New("the node after clean-up is not the node before the program:\n" + diff)
		}
	}
	s.left = cmp.Or(s.left, left)
	return nil
}

// put applies services on both sides.
func (c *comparison) put(ctx context.Context, services ...service) error {
	return c.both(func(_ int, s *side) error { return s.session.put(ctx, services...) })
}

// alive returns an error if one of the programs has ended.
func (c *comparison) alive() error {
	return c.both(func(_ int, s *side) error {
		select {
		case <-s.session.program.host.Ended():
			return &programError{s.session.program.host.Failure()}
		default:
			return nil
		}
	})
}

// cluster applies the last state of a script, makes connections, and takes down what is different.
func (c *comparison) cluster(ctx context.Context, sc script, list []traffic) error {
	services := sc.steps[1].services
	if err := c.put(ctx, services...); err != nil {
		return err
	}
	flows, err := c.expand(list)
	if err != nil {
		return err
	}
	c.flows += len(flows)
	differ, err := c.differing(ctx, flows)
	if err != nil {
		return err
	}
	if err := errors.Join(ctx.Err(), c.alive()); err != nil {
		return err
	}
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

// expand returns the flows of traffic, with what the oracle expects of them in the applied state.
func (c *comparison) expand(list []traffic) ([]*compared, error) {
	s := c.sides[0].session
	var flows []*compared
	for _, tr := range list {
		expanded, err := step{traffic: []traffic{tr}}.flows(s.env.Families, s.protocols())
		if err != nil {
			return nil, err
		}
		for _, e := range expanded {
			f := &compared{to: tr.to[0], of: tr.as.name}
			if err := c.expect(f, e.Attempt); err != nil {
				return nil, err
			}
			flows = append(flows, f)
		}
	}
	return flows, nil
}

// expect makes a flow one that has not been tried yet in the applied state.
func (c *comparison) expect(f *compared, a network.Attempt) error {
	list, err := c.sides[0].session.expect([]network.Attempt{a})
	if err != nil {
		return err
	}
	f.expectation = list[0]
	f.forget()
	return nil
}
