package judge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// lane is a worker: it runs one case after the other on its own network.
type lane struct {
	*judging
	kind    laneKind
	testbed *testbed.Testbed // nil if none is open
	// asked is the setup that the cases request. The testbed's differs if the program cannot be configured.
	asked cluster.Setup
	// release ends the control connections, and the count of the program's processor time.
	release func()
}

// begin starts the program, and observes its configuration if nothing specifies it.
func (l *lane) begin(ctx context.Context) error {
	set := l.base
	if l.Configures {
		set = l.queue[0].Setup
	}
	l.usual = set
	if !l.Configures && l.Assume == nil {
		found, err := l.observed(ctx)
		if err != nil {
			return err
		}
		l.say("the program behaves like this: %v", found)
		set, l.base = found, found
	}
	err := l.start(ctx, false, func() error {
		l.end()
		return l.open(ctx, set)
	})
	if err != nil {
		return err
	}
	l.asked = l.queue[0].Setup
	l.say("the program is ready after %v", l.figures.Starts[0].Round(10*time.Millisecond))
	return nil
}

// open creates a network with a running program.
func (l *lane) open(ctx context.Context, set cluster.Setup) error {
	if err := l.prepare(ctx, set); err != nil {
		return err
	}
	return l.begun(ctx, set)
}

func (l *lane) begun(ctx context.Context, set cluster.Setup) error {
	if err := l.testbed.Start(ctx, set); err != nil {
		return err
	}
	return l.testbed.Put(ctx)
}

// nodeOf returns the description of the node that a program gets.
func nodeOf(e backend.Env) program.Node {
	return program.Node{Families: e.Families, NodeIPs: e.NodeIPs, HostAddresses: e.HostAddresses}
}

// prepare creates a network without starting the program.
func (l *lane) prepare(ctx context.Context, set cluster.Setup) error {
	if err := l.setUp(ctx, set); err != nil {
		return &testbed.SetupError{Err: err}
	}
	return nil
}

func (l *lane) setUp(ctx context.Context, set cluster.Setup) (err error) {
	f := backend.Factory{Lacks: l.lacks, RepairsItself: true}
	timeouts := l.timeouts
	timeouts.Answer, timeouts.Repair = timeouts.Answer/5, 2*timeouts.Repair
	n, err := network.New(l.families, l.Seed+rand.Uint64N(1<<20))
	if err != nil {
		return err
	}
	b, err := testbed.NewOn(n, f, timeouts, l.Seed)
	if err != nil {
		return err
	}
	l.testbed = b
	env := set.Env(f.Families())
	b.Try = l.slowly(n.Try)
	p := &testbed.Program{Machine: l.machine, Spent: l.spent, Try: n.Try, Families: env.Families, Figures: l.figures,
		StartTimeout: l.StartTimeout,
		Silence:      timeouts.Answer / 2, Always: append(set.Objects(env.Families), otherNodes(env.Families)...)}
	p.Describe(nil)
	err = b.Host.Do(func() (err error) {
		p.Host, err = l.Open(ctx, nodeOf(env), configurationOf(set, env.Families))
		return err
	})
	if err != nil {
		b.Close()
		l.testbed = nil
		return fmt.Errorf("prepare the program: %w", err)
	}
	b.Program = p
	l.release = l.watch(n, p.Host)
	b.Factory.New = func(context.Context, backend.Env) (sink.Sink, error) { return p, nil }
	b.Factory.Dump = func(ctx context.Context, _ backend.Env) (string, error) { return p.Host.Dump(ctx) }
	if l.Cleans {
		b.Factory.Cleanup = func(ctx context.Context, _ backend.Env) error { return p.Host.Cleanup(ctx) }
	}
	if l.Breaks {
		b.Factory.Break = func(ctx context.Context, _ backend.Env) error { return p.Host.Break(ctx) }
	}
	return nil
}

// end stops the program and removes the network.
func (l *lane) end() {
	b := l.testbed
	if l.testbed = nil; b == nil {
		return
	}
	if b.Sink != nil {
		_ = b.Drop()
	}
	b.Program.Host.Close()
	l.release()
	b.Close()
}

// work runs cases until the queue is empty.
func (l *lane) work(ctx context.Context) {
	for ctx.Err() == nil {
		var now *cluster.Setup
		if l.testbed != nil {
			now = &l.asked
		}
		c, ok := l.next(l.kind, now)
		if !ok {
			return
		}
		if why := l.whyUnbroken(); c.Hook == cases.BreakHook && why != "" {
			r := result(c, report.NotRun, why)
			r.Interrupted = true
			l.add(r)
			continue
		}
		if c.Tries > 0 {
			l.machine.AwaitQuiet(ctx, l.quietTimeout)
		}
		r, whole := l.judgeCase(ctx, c)
		if ctx.Err() != nil {
			l.add(early(c))
			return
		}
		if r.Verdict == report.NotJudged {
			l.end()
			if l.tryAgain(c) {
				l.say("%s: %s, so it is tried again", c.Name, r.Why)
				continue
			}
		}
		l.add(r)
		// The node's state is unknown, or a program that lost its API server may wait long before it reconnects.
		if r.Verdict == report.Failed || r.Verdict == report.NotRun || c.Outage || l.disturbed() != nil {
			l.end()
		}
		l.noteStart(c.Setup, whole)
	}
}

// noteStart records whether the program became ready. Three consecutive failed starts end the run. If the program
// rejects a case's configuration, only that case fails.
func (l *lane) noteStart(set cluster.Setup, err error) {
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

// judgeCase runs a case. whole is an error that concerns the program, not just the case.
func (l *lane) judgeCase(ctx context.Context, c cases.Case) (r report.Result, whole error) {
	began := time.Now()
	_ = l.disturbed()
	err := l.try(ctx, c, c.Run)
	r = result(c, report.Passed, "")
	busy := ""
	if err != nil || l.testbed.Program.Late {
		busy = l.machine.Busy(began)
	}
	if err != nil && busy == "" && c.Tries == 0 {
		busy = l.machine.Shared(began)
	}
	if why := l.reasonToLeaveOut(err); why != "" {
		r.Verdict, r.Why, r.Elapsed, r.Interrupted = report.NotRun, why, time.Since(began), true
		return r, nil
	}
	switch b := l.testbed; {
	case err != nil && busy != "":
		r.Verdict, r.Why = report.NotJudged, busy
	case err != nil:
		r.Verdict, r.Why = report.Failed, "it did not happen as it should"
		r.Failures, r.More = failuresOf(err)
		if isProgramError(err) {
			r.Why, whole = "the program was not there", err
		}
		if c.Hook == cases.BreakHook && whole == nil {
			r.Why = "the rules that were removed did not come back. Nothing else is judged on this network"
		}
		if b != nil {
			r.Ruleset = b.Dump(ctx)
			l.explain(ctx, &r, err, c.Hook != cases.BreakHook)
		}
	case busy == "" && b.Program.Late:
		r.Verdict, r.Why = report.Slow, "something was right only after a while"
	}
	r.Elapsed = time.Since(began)
	return r, whole
}

// reasonToLeaveOut returns why a case's error is not the program's fault, or "".
func (l *lane) reasonToLeaveOut(err error) string {
	if err == nil {
		return ""
	}
	var refused *program.RefusedError
	if errors.As(err, &refused) {
		return refused.Error()
	}
	var unbroken *cases.BreakError
	if errors.As(err, &unbroken) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unbroken = "its rules cannot be removed, as another case has shown"
		return fmt.Sprintf("its rules cannot be removed, so that it could repair them: %v", unbroken)
	}
	var setup *testbed.SetupError
	if errors.As(err, &setup) {
		return setup.Error()
	}
	if err := l.disturbed(); err != nil {
		return fmt.Sprintf("the API server was away: %v", err)
	}
	return ""
}

// whyUnbroken returns why the program's rules cannot be removed, or "".
func (l *lane) whyUnbroken() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unbroken
}

// disturbed returns an error if, since the last call, the host disturbed the program.
func (l *lane) disturbed() error {
	if l.testbed == nil {
		return nil
	}
	if h, ok := l.testbed.Program.Host.(interface{ Disturbed() error }); ok {
		return h.Disturbed()
	}
	return nil
}

// restarts is the maximum number of times that a case restarts the program.
const restarts = 4

// try calls run for a case, on the running program if that has the same setup.
func (l *lane) try(ctx context.Context, c cases.Case, run func(context.Context, *testbed.Testbed) error) error {
	if l.testbed != nil && l.asked != c.Setup {
		l.end()
	}
	if l.testbed == nil {
		set := l.base
		if l.Configures {
			set = c.Setup
		}
		if err := l.open(ctx, set); err != nil {
			return err
		}
		l.asked = c.Setup
	}
	ctx, cancel := context.WithTimeout(ctx, cases.Timeout+restarts*l.StartTimeout)
	defer cancel()
	b := l.testbed
	b.Program.Late = false
	if !c.Continues && len(b.Described.Services) > 0 {
		if err := b.Put(ctx); err != nil {
			return fmt.Errorf("remove the services of the case before: %w", err)
		}
	}
	return run(ctx, b)
}

// otherNodes returns the other Nodes, which a program may need for routes.
func otherNodes(families []model.Family) []metav1.Object {
	var list []metav1.Object
	for _, name := range []string{network.OtherNode, network.ThirdNode} {
		list = append(list, cluster.NodeObject(name, families))
	}
	return list
}

func isProgramError(err error) bool {
	var e *testbed.ProgramError
	return errors.As(err, &e)
}
