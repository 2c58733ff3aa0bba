package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// testCase is one test of the suite.
type testCase struct {
	name  string
	rules string
	needs []Feature
	setup setup
	// hook names the function of the factory that the case needs, if any, and has reports whether it is set.
	hook string
	has  func(Factory) bool
	// inSimulation: the case needs no network namespaces and no established connections.
	inSimulation bool
	// outage: the API server goes away and comes back.
	outage bool
	// stepwise: the case describes states and calls Sync itself, which a program has no equivalent of.
	stepwise bool
	// continues: the case may start while another case's services exist, because its own replace them.
	continues bool
	// tries counts how often a program has been tried with it, and could not be judged.
	tries int
	run   func(ctx context.Context, b *testbed) error
}

// cases returns all cases of the suite.
func cases() []testCase {
	var list []testCase
	for _, c := range trafficCases() {
		list = append(list, c.testCase())
	}
	return slices.Concat(list, nodePortCases(), affinityCases(), balanceCases(), connectionCases(), staleFlowCases(),
		transferCases(), bystanderCases(), hostPortCases(), otherNodeCases(), ownerCases(), hostAddressCases(),
		lifecycleCases())
}

// programCases returns the cases that only programs are tried with: a backend has no API server and no health checks.
func programCases() []testCase { return slices.Concat(outageCases(), sliceCases(), healthCases()) }

func (c trafficCase) testCase() testCase {
	return testCase{
		name: c.name, rules: c.rules, needs: append(slices.Clone(c.needs), c.setup.needs()...), setup: c.setup,
		continues: true,
		run:       func(ctx context.Context, b *testbed) error { return c.run(ctx, b) },
	}
}

// check validates a factory.
func (f Factory) check() error {
	if f.lacks(IPv4) && f.lacks(IPv6) {
		return errors.New("the factory lacks both IP families")
	}
	if f.New == nil {
		return errors.New("the factory has no New")
	}
	for _, feature := range f.Lacks {
		if !slices.Contains(features(), feature) {
			return fmt.Errorf("there is no feature %q; there are %q", feature, features())
		}
	}
	for _, name := range f.Waives {
		if !slices.ContainsFunc(cases(), func(c testCase) bool { return c.name == name }) {
			return fmt.Errorf("the factory waives %q, and there is no such case", name)
		}
	}
	return nil
}

// missing returns why a case is not run for a backend, or "".
func (c testCase) missing(f Factory) string {
	for _, feature := range c.needs {
		if f.lacks(feature) {
			return "the backend lacks " + string(feature)
		}
	}
	switch {
	case f.waives(c.name):
		return "the backend waives it"
	case c.has != nil && !c.has(f):
		return "the factory has no " + c.hook
	}
	return ""
}

// run executes the steps of the case.
func (c trafficCase) run(ctx context.Context, b *testbed) error {
	if c.vipsOnNode && b.n != nil {
		vip := c.steps[0].services[0].withDefaults(0).vipAddr
		defer func() { _ = b.n.TakeFromNode("lo", vip) }()
		if err := b.n.GiveToNode("lo", vip); err != nil {
			return err
		}
	}
	for _, st := range c.steps {
		if err := b.step(ctx, st); err != nil {
			if st.then != "" {
				return &stepError{st.then, err}
			}
			return err
		}
	}
	return nil
}

// stepError is what failed after a step of a case.
type stepError struct {
	step string
	error
}

func (e *stepError) Error() string { return fmt.Sprintf("after the step %q:\n\n%v", e.step, e.error) }

func (e *stepError) Unwrap() error { return e.error }

// serving runs a case that starts with a service.
func serving(svc service, run func(context.Context, *testbed, service) error) func(context.Context, *testbed) error {
	return func(ctx context.Context, b *testbed) error {
		if err := b.put(ctx, svc); err != nil {
			return err
		}
		return run(ctx, b, svc)
	}
}

// step applies a state and tries its traffic.
func (b *testbed) step(ctx context.Context, st step) error {
	if err := b.put(ctx, st.services...); err != nil {
		return err
	}
	return b.traffic(ctx, st)
}

// traffic tries a step's traffic in the current state.
func (b *testbed) traffic(ctx context.Context, st step) error {
	return b.trafficIn(ctx, st, b.described)
}

// trafficIn tries a step's traffic, and expects the outcomes of a state.
func (b *testbed) trafficIn(ctx context.Context, st step, applied state) error {
	expected, err := st.flows(b.env.Families, b.protocols())
	if err != nil {
		return err
	}
	if len(expected) == 0 {
		return errors.New("there is no traffic that this backend can be tried with: the case should not be run")
	}
	var flows []network.Attempt
	for _, e := range expected {
		flows = append(flows, e.Attempt)
	}
	list, err := b.expectIn(applied, b.setup.oracleConfig(b.env.Families), flows)
	if err != nil {
		return err
	}
	for i, e := range expected {
		if e.want.strict {
			list[i].out.AlsoAllowed = nil
		}
		if e.want.orRefused {
			list[i].out.AlsoAllowed = append(slices.Clone(list[i].out.AlsoAllowed), oracle.Outcome{Flow: e.Flow,
				Verdict: oracle.Reject, Reasons: []oracle.Reason{{Text: "whether it is refused is another case"}}})
		}
		list[i].anySource = e.want.anySource
	}
	return b.verify(ctx, list)
}

// expect returns the outcomes that the oracle expects of flows in the current state.
func (b *testbed) expect(flows []network.Attempt) ([]expectation, error) {
	return b.expectIn(b.described, b.setup.oracleConfig(b.env.Families), flows)
}

// expectIn returns the outcomes that the oracle expects of flows, in a state on a node.
func (b *testbed) expectIn(applied state, node oracle.Config, flows []network.Attempt) ([]expectation, error) {
	o, err := applied.oracle(node)
	if err != nil {
		return nil, err
	}
	list := make([]expectation, len(flows))
	for i, f := range flows {
		out, err := o.Expect(f.Flow)
		if err == nil && b.n == nil {
			out, err = b.simulated(o, out, applied)
		}
		if err != nil {
			return nil, err
		}
		e := expectation{Attempt: f, out: out, oracle: o, factory: &b.factory, waived: b.waived,
			external: applied.isExternal(f.Destination.Addr())}
		if b.n != nil && b.n.RawSCTP(f) && e.allows(oracle.NotOurs) {
			e.out.AlsoAllowed = append(slices.Clone(out.AlsoAllowed), oracle.Outcome{Flow: f.Flow, Verdict: oracle.Drop,
				Reasons: []oracle.Reason{{Text: "SCTP in user space answers nothing that it does not serve"}}})
		}
		list[i] = e
	}
	return list, nil
}
