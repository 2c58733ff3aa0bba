package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
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
	run          func(ctx context.Context, s *session) error
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
		run: func(ctx context.Context, s *session) error { return c.run(ctx, s) },
	}
}

// missing returns why a case is not run for a backend, "" if it is.
func (c testCase) missing(f Factory) string {
	for _, feature := range c.needs {
		if f.lacks(feature) {
			return "the backend lacks " + string(feature)
		}
	}
	if c.has != nil && !c.has(f) {
		return "the factory has no " + c.hook
	}
	return ""
}

// run takes the backend through the steps of the case.
func (c trafficCase) run(ctx context.Context, s *session) error {
	if c.vipsOnNode {
		remove, err := s.n.giveToNode(c.steps[0].services[0].withDefaults(0).vipAddr)
		if err != nil {
			return err
		}
		defer remove()
	}
	for _, st := range c.steps {
		if err := s.step(ctx, st); err != nil {
			if st.then != "" {
				return fmt.Errorf("after the step %q:\n\n%w", st.then, err)
			}
			return err
		}
	}
	return nil
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
func (s *session) trafficIn(ctx context.Context, st step, inForce state) error {
	o, err := inForce.oracle(s.setup, s.env.Families)
	if err != nil {
		return err
	}
	expected, err := st.flows(s.env.Families, s.protocols())
	if err != nil {
		return err
	}
	if len(expected) == 0 {
		return errors.New("there is no traffic that this backend can be tried with: the case should not be run")
	}
	var list []expectation
	for _, e := range expected {
		x, err := s.expect(o, flow{Flow: e.flow, from: e.source, about: e.about}, inForce)
		if err != nil {
			return err
		}
		if e.want.strict {
			x.out.AlsoAllowed = nil
		}
		x.anySource = e.want.anySource
		list = append(list, x)
	}
	return s.verify(ctx, o, list)
}

// expectAll asks the oracle about flows, in the state that the backend has been told.
func (s *session) expectAll(o *oracle.Oracle, flows []flow) ([]expectation, error) {
	var list []expectation
	for _, f := range flows {
		x, err := s.expect(o, f, s.told)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// expect asks the oracle about a flow in a state.
func (s *session) expect(o *oracle.Oracle, f flow, inForce state) (expectation, error) {
	out, err := o.Expect(f.Flow)
	e := expectation{flow: f, out: out, lacks: s.factory.Lacks, waived: s.waived,
		external: inForce.isExternal(f.Destination.Addr())}
	if s.n.forward != nil && err == nil {
		e.out, err = s.claimed(o, out, inForce)
	}
	if s.n.rawSCTP(f) && e.allows(oracle.NotOurs) {
		e.out.AlsoAllowed = append(slices.Clone(out.AlsoAllowed), oracle.Outcome{Flow: f.Flow, Verdict: oracle.Drop,
			Reasons: []oracle.Reason{{Text: "SCTP in user space answers nothing that it does not serve"}}})
	}
	return e, err
}

// giveToNode adds an address of each family to the node's loopback interface, until remove is called.
func (n *network) giveToNode(addr func(model.Family) netip.Addr) (remove func(), err error) {
	if n.forward != nil {
		return func() {}, nil
	}
	err = n.node.Do(func() error {
		for _, f := range n.families {
			if err := addAddr("lo", hostPrefix(addr(f))); err != nil {
				return err
			}
		}
		return nil
	})
	remove = func() {
		_ = n.node.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			for _, f := range n.families {
				err = errors.Join(err, netlink.AddrDel(lo, &netlink.Addr{IPNet: ipNet(hostPrefix(addr(f)))}))
			}
			return err
		})
	}
	return remove, err
}
