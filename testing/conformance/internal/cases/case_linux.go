package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// Timeout bounds each case. No case comes near it.
const Timeout = 10 * time.Minute

// Case is one test of the suite.
type Case struct {
	Name  string
	Rules string
	Needs []backend.Feature
	Setup cluster.Setup
	// Hook names the function of the factory that the case needs, if any, and has reports whether it is set.
	Hook string
	has  func(backend.Factory) bool
	// inSimulation: the case needs no network namespaces and no established connections.
	inSimulation bool
	// Outage: the API server goes away and comes back.
	Outage bool
	// iptables: the case adds rules with a program of iptables.
	iptables bool
	// Stepwise: the case describes states and calls Sync itself, which a program has no equivalent of.
	Stepwise bool
	// Continues: the case may start while another case's services exist, because its own replace them.
	Continues bool
	// Tries counts the tries of this case with a program that could not be judged.
	Tries int
	run   func(ctx context.Context, b *bed) error
}

// bed is a testbed with the methods that cases use.
type bed struct{ *testbed.Testbed }

// copy returns a bed whose settings can be changed without those of b.
func (b *bed) copy() *bed {
	c := *b.Testbed
	return &bed{&c}
}

// All returns all cases of the suite.
func All() []Case {
	return slices.Concat(tableCases(), nodePortCases(), affinityCases(), balanceCases(), connectionCases(),
		staleFlowCases(), transferCases(), bystanderCases(), hostPortCases(), pluginCases(), leftoverCases(),
		otherNodeCases(), ownerCases(), hostAddressCases(), lifecycleCases())
}

// ForPrograms returns the cases that are only for programs: a backend has no API server and no health checks.
func ForPrograms() []Case { return slices.Concat(outageCases(), sliceCases(), healthCases()) }

// Simulated returns the cases that need no real packets.
func Simulated() []Case {
	list := tableCases()
	for _, c := range slices.Concat(ownerCases(), lifecycleCases()) {
		if c.inSimulation {
			list = append(list, c)
		}
	}
	return slices.Concat(list, balanceCases())
}

// tableCases returns the cases that need only states and traffic.
func tableCases() []Case {
	var list []Case
	for _, c := range trafficCases() {
		list = append(list, c.testCase())
	}
	return list
}

func (c trafficCase) testCase() Case {
	return Case{
		Name: c.name, Rules: c.rules, Needs: append(slices.Clone(c.needs), c.setup.Needs()...), Setup: c.setup,
		Continues: true,
		run:       func(ctx context.Context, b *bed) error { return c.run(ctx, b) },
	}
}

// Check validates a factory.
func Check(f backend.Factory) error {
	if f.LacksFeature(backend.IPv4) && f.LacksFeature(backend.IPv6) {
		return errors.New("the factory lacks both IP families")
	}
	if f.New == nil {
		return errors.New("the factory has no New")
	}
	for _, feature := range f.Lacks {
		if !slices.Contains(backend.Features(), feature) {
			return fmt.Errorf("there is no feature %q; there are %q", feature, backend.Features())
		}
	}
	for _, name := range f.Waives {
		if !slices.ContainsFunc(All(), func(c Case) bool { return c.Name == name }) {
			return fmt.Errorf("the factory waives %q, and there is no such case", name)
		}
	}
	return nil
}

// Run runs the case.
func (c Case) Run(ctx context.Context, b *testbed.Testbed) error { return c.run(ctx, &bed{b}) }

// Missing returns why a case is not run for a backend, or "".
func (c Case) Missing(f backend.Factory) string {
	for _, feature := range c.Needs {
		if f.LacksFeature(feature) {
			return "the backend lacks " + string(feature)
		}
	}
	switch {
	case f.WaivesCase(c.Name):
		return "the backend waives it"
	case c.has != nil && !c.has(f):
		return "the factory has no " + c.Hook
	}
	return c.MissingHere()
}

// MissingHere returns why a case cannot be run on this machine, or "".
func (c Case) MissingHere() string {
	if c.iptables && len(iptablesVariants()) == 0 {
		return "iptables is not installed"
	}
	return ""
}

// run executes the steps of the case.
func (c trafficCase) run(ctx context.Context, b *bed) error {
	if c.vipsOnNode && b.Network != nil {
		vip := c.steps[0].services[0].WithDefaults(0).VIPAddr
		defer func() { _ = b.Network.TakeFromNode("lo", vip) }()
		if err := b.Network.GiveToNode("lo", vip); err != nil {
			return err
		}
	}
	for _, st := range c.steps {
		if err := b.step(ctx, st); err != nil {
			if st.then != "" {
				return &StepError{st.then, err}
			}
			return err
		}
	}
	return nil
}

// StepError is a failure after a step of a case.
type StepError struct {
	Step string
	error
}

func (e *StepError) Error() string { return fmt.Sprintf("after the step %q:\n\n%v", e.Step, e.error) }

func (e *StepError) Unwrap() error { return e.error }

// serving runs a case that starts with a service.
func serving(svc service, run func(context.Context, *bed, service) error) func(context.Context, *bed) error {
	return func(ctx context.Context, b *bed) error {
		if err := b.Put(ctx, svc); err != nil {
			return err
		}
		return run(ctx, b, svc)
	}
}

// BySetup groups cases by setup, in an otherwise stable order.
func BySetup(list []Case) []Case {
	first := func(c Case) int {
		return slices.IndexFunc(list, func(other Case) bool { return other.Setup == c.Setup })
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b Case) int { return first(a) - first(b) })
}

// step applies a state and tries its traffic.
func (b *bed) step(ctx context.Context, st step) error {
	if err := b.Put(ctx, st.services...); err != nil {
		return err
	}
	return b.traffic(ctx, st)
}

// traffic tries a step's traffic in the current state.
func (b *bed) traffic(ctx context.Context, st step) error {
	return b.trafficIn(ctx, st, b.Described)
}

// trafficIn tries a step's traffic, and expects the outcomes of a state.
func (b *bed) trafficIn(ctx context.Context, st step, applied cluster.State) error {
	expected, err := st.flows(b.Env.Families, b.Protocols())
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
	list, err := b.ExpectIn(applied, b.Setup.OracleConfig(b.Env.Families), flows)
	if err != nil {
		return err
	}
	for i, e := range expected {
		if e.want.strict {
			list[i].Out.AlsoAllowed = nil
		}
		if e.want.orRefused {
			list[i].Out.AlsoAllowed = append(slices.Clone(list[i].Out.AlsoAllowed), oracle.Outcome{Flow: e.Flow,
				Verdict: oracle.Reject, Reasons: []oracle.Reason{{Text: "whether it is refused is another case"}}})
		}
		list[i].AnySource = e.want.anySource
	}
	return b.Verify(ctx, list)
}
