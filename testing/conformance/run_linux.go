package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// testCase is one test of the suite.
type testCase struct {
	name  string
	rules string
	needs []Feature
	setup setup
	// hook is the function of the factory that the case needs, if it needs one, and has reports whether it is there.
	hook string
	has  func(Factory) bool
	// inSimulation: the case needs no network namespaces and no established connections.
	inSimulation bool
	// stepwise: the case describes states and calls Sync itself, which a program of its own has no equal of.
	stepwise bool
	// continues: the case may begin with the services of another one, as long as its own replace them.
	continues bool
	run       func(ctx context.Context, s *session) error
}

// cases returns all cases of the suite: those that consist of states and traffic, and the others.
func cases() []testCase {
	var list []testCase
	for _, c := range trafficCases() {
		list = append(list, c.testCase())
	}
	return slices.Concat(list, nodePortCases(), affinityCases(), balanceCases(), connectionCases(), staleFlowCases(),
		transferCases(), bystanderCases(), ownerCases(), hostAddressCases(), lifecycleCases())
}

func (c trafficCase) testCase() testCase {
	return testCase{
		name: c.name, rules: c.rules, needs: append(slices.Clone(c.needs), c.setup.needs()...), setup: c.setup,
		continues: true,
		run:       func(ctx context.Context, s *session) error { return c.run(ctx, s) },
	}
}

// check returns why a factory makes no sense, or nil.
func (f Factory) check() error {
	if f.lacks(IPv4) && f.lacks(IPv6) {
		return errors.New("the factory lacks both IP families")
	}
	if f.New == nil {
		return errors.New("the factory has no New")
	}
	for _, name := range f.Waives {
		if !slices.ContainsFunc(cases(), func(c testCase) bool { return c.name == name }) {
			return fmt.Errorf("the factory waives %q, and there is no such case", name)
		}
	}
	return nil
}

// missing returns why a case is not run for a backend, "" if it is.
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

// run takes the backend through the steps of the case.
func (c trafficCase) run(ctx context.Context, s *session) error {
	if c.vipsOnNode && s.n != nil {
		vip := c.steps[0].services[0].withDefaults(0).vipAddr
		defer func() { _ = s.n.TakeFromNode("lo", vip) }()
		if err := s.n.GiveToNode("lo", vip); err != nil {
			return err
		}
	}
	for _, st := range c.steps {
		if err := s.step(ctx, st); err != nil {
			if st.then != "" {
				return &stepError{st.then, err}
			}
			return err
		}
	}
	return nil
}

// stepError is what went wrong after a step of a case.
type stepError struct {
	step string
	error
}

func (e *stepError) Error() string { return fmt.Sprintf("after the step %q:\n\n%v", e.step, e.error) }

func (e *stepError) Unwrap() error { return e.error }

// serving runs a case that begins with a service.
func serving(svc service, run func(context.Context, *session, service) error) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		if err := s.put(ctx, svc); err != nil {
			return err
		}
		return run(ctx, s, svc)
	}
}

// step applies a state and tries its traffic.
func (s *session) step(ctx context.Context, st step) error {
	if err := s.put(ctx, st.services...); err != nil {
		return err
	}
	return s.traffic(ctx, st)
}

// traffic tries the traffic of a step in the state that is applied.
func (s *session) traffic(ctx context.Context, st step) error { return s.trafficIn(ctx, st, s.told) }

// trafficIn tries the traffic of a step in a state.
func (s *session) trafficIn(ctx context.Context, st step, applied state) error {
	expected, err := st.flows(s.env.Families, s.protocols())
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
	list, err := s.expectIn(applied, s.setup.oracleConfig(s.env.Families), flows)
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
	return s.verify(ctx, list)
}

// expect asks the oracle about flows, in the state that the backend has been told.
func (s *session) expect(flows []network.Attempt) ([]expectation, error) {
	return s.expectIn(s.told, s.setup.oracleConfig(s.env.Families), flows)
}

// expectIn asks the oracle about flows, in a state and on a node.
func (s *session) expectIn(applied state, node oracle.Config, flows []network.Attempt) ([]expectation, error) {
	o, err := applied.oracle(node)
	if err != nil {
		return nil, err
	}
	list := make([]expectation, len(flows))
	for i, f := range flows {
		out, err := o.Expect(f.Flow)
		if err == nil && s.n == nil {
			out, err = s.simulated(o, out, applied)
		}
		if err != nil {
			return nil, err
		}
		e := expectation{Attempt: f, out: out, oracle: o, factory: &s.factory, waived: s.waived,
			external: applied.isExternal(f.Destination.Addr())}
		if s.n != nil && s.n.RawSCTP(f) && e.allows(oracle.NotOurs) {
			e.out.AlsoAllowed = append(slices.Clone(out.AlsoAllowed), oracle.Outcome{Flow: f.Flow, Verdict: oracle.Drop,
				Reasons: []oracle.Reason{{Text: "SCTP in user space answers nothing that it does not serve"}}})
		}
		list[i] = e
	}
	return list, nil
}
