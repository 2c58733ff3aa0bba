package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// lifecycleCases cover when a state takes effect, failures, restarts, and foreign changes to the dataplane.
func lifecycleCases() []testCase {
	stays := firstStep().services[0]
	return []testCase{
		{name: "what is described takes effect at Sync, not before", rules: "S43", stepwise: true, inSimulation: true,
			run: nothingBeforeSync},
		{name: "calls that change nothing change nothing", rules: "S14", stepwise: true, inSimulation: true,
			run: idempotentCalls},
		{name: "a Sync that is cancelled loses nothing", rules: "S46", stepwise: true, inSimulation: true,
			run: cancelledSync},
		{name: "a Sync that fails loses nothing", rules: "S46", stepwise: true, hook: "Fail",
			has: func(f Factory) bool { return f.Fail != nil }, run: whileConnected(stays, failedSync)},
		{name: "a restart keeps traffic, and corrects what has changed meanwhile", rules: "S44",
			run: restartKeepsTraffic},
		{name: "connections that stand survive a restart", rules: "S44",
			run: whileConnected(stays, restartKeepsConnections)},
		{name: "no new connection is lost while the backend restarts", rules: "S44",
			run: serving(stays, restartLosesNothing)},
		{name: "rules that somebody else removed come back", rules: "S44", hook: breakHook,
			has: func(f Factory) bool { return f.Break != nil }, inSimulation: true, run: driftIsRepaired},
		{name: "rules that somebody else removed while no backend ran come back", rules: "S44", hook: breakHook,
			has: func(f Factory) bool { return f.Break != nil }, inSimulation: true, run: restartRepairs},
		{name: "clean-up leaves nothing, and touches nothing of others", rules: "S50", hook: "Cleanup",
			has: func(f Factory) bool { return f.Cleanup != nil }, run: cleanupLeavesNothing},
	}
}

// stepOf returns a step with these services, and with traffic that checks all of them.
func stepOf(services ...service) step {
	st := step{services: services}
	for i, svc := range services {
		svc = svc.withDefaults(i)
		var places []string
		for _, e := range svc.endpoints {
			places = append(places, e.at)
		}
		if len(places) == 0 {
			st.traffic = append(st.traffic,
				traffic{of: svc.name, from: []string{localPod3, client}, to: everywhere, want: refused})
			continue
		}
		st.traffic = append(st.traffic,
			traffic{of: svc.name, from: []string{localPod3}, to: toCluster, want: keeping(places...)},
			traffic{of: svc.name, from: []string{theNode, client}, to: externalDestinations,
				want: masquerading(places...)})
	}
	return st
}

// The lifecycle cases change from the first step to the second: one service stays, one changes its endpoints, one loses
// all of them, one is deleted, one is created.
func firstStep() step {
	return stepOf(
		external(service{name: "stays", slot: 1, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "changes", slot: 2, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "empties", slot: 3, endpoints: at(localPod2)}),
		external(service{name: "goes", slot: 4, endpoints: at(localPod1, remotePod1)}))
}

func secondStep() step {
	st := stepOf(
		external(service{name: "stays", slot: 1, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "changes", slot: 2, endpoints: at(localPod2, remotePod1, remotePod2)}),
		external(service{name: "empties", slot: 3}),
		external(service{name: "comes", slot: 5, endpoints: at(remotePod2)}))
	st.traffic = append(st.traffic,
		traffic{from: []string{localPod3, client}, to: externalDestinations, as: &service{name: "goes", slot: 4},
			want: leftAlone})
	return st
}

func nothingBeforeSync(ctx context.Context, b *testbed) error {
	before, after := firstStep(), secondStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	described := b.described
	if err := b.describe(after.services...); err != nil {
		return err
	}
	if err := b.trafficIn(ctx, before, described); err != nil {
		return fmt.Errorf("after a new state was described, and before Sync:\n\n%w", err)
	}
	if err := b.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return b.traffic(ctx, after)
}

func idempotentCalls(ctx context.Context, b *testbed) error {
	before := firstStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	err := b.host.Do(func() error {
		for _, svc := range b.described.services {
			b.sink.SetService(svc)
		}
		for _, ep := range b.described.endpoints {
			b.sink.SetEndpoint(ep)
		}
		nobody := model.ServiceName{Namespace: "default", Name: "nobody"}
		b.sink.DeleteEndpoint(model.EndpointKey{Port: model.PortName{Service: nobody, Protocol: model.TCP},
			Target: network.PlaceNamed(localPod1).ServerAt(b.env.Families[0])})
		b.sink.DeleteService(nobody)
		return nil
	})
	if err != nil {
		return err
	}
	for range 2 {
		if err := b.sync(ctx); err != nil {
			return fmt.Errorf("sync after calls that change nothing: %w", err)
		}
	}
	if err := b.resync(ctx); err != nil {
		return err
	}
	return b.traffic(ctx, before)
}

func cancelledSync(ctx context.Context, b *testbed) error {
	if err := b.step(ctx, firstStep()); err != nil {
		return err
	}
	after := secondStep()
	if err := b.describe(after.services...); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.sync(cancelled); err == nil {
		return b.traffic(ctx, after) // Sync returned no error despite the cancellation, so the state must be applied.
	}
	return b.retry(ctx, after)
}

// retry does what kubeproxy.Run does after a failed Sync: it requests a resync and calls Sync again, without repeating
// any change.
func (b *testbed) retry(ctx context.Context, now step) error {
	if err := b.resyncFailed(); err != nil {
		return err
	}
	if err := b.sync(ctx); err != nil {
		return fmt.Errorf("sync after a failed one: %w", err)
	}
	if err := b.traffic(ctx, now); err != nil {
		return fmt.Errorf("after a Sync that failed and one that did not:\n\n%w", err)
	}
	return nil
}

// failedSync makes two Syncs fail. The second failure must not lose the changes of the first wave.
func failedSync(ctx context.Context, b *testbed, unchanged service, open standing) error {
	before, after := firstStep(), secondStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	st := b.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() (err error) {
		var end func() error
		err = b.host.Do(func() (err error) {
			end, err = b.factory.Fail(ctx, b.env)
			return err
		})
		if err != nil {
			return fmt.Errorf("make Sync fail: %w", err)
		}
		repair := sync.OnceValue(func() error { return b.host.Do(end) })
		defer func() { err = errors.Join(err, repair()) }()

		half := secondStep()
		half.services = append(half.services[:2:2], before.services[2:]...)
		for _, wave := range []step{half, after} {
			if err := b.describe(wave.services...); err != nil {
				return err
			}
			if err := b.sync(ctx); err == nil {
				return errors.New("the factory's Fail does not make Sync fail")
			}
			if err := b.resyncFailed(); err != nil {
				return err
			}
			if err := st.await(ctx, 3); err != nil {
				return err
			}
		}
		if err := repair(); err != nil {
			return fmt.Errorf("end the failure: %w", err)
		}
		return b.retry(ctx, after)
	})
	if err != nil {
		return fmt.Errorf("while Sync failed:\n\n%w", err)
	}
	return open.check(b.timeouts)
}

func restartKeepsTraffic(ctx context.Context, b *testbed) error {
	if err := b.step(ctx, firstStep()); err != nil {
		return err
	}
	return b.throughRestarts(ctx, &stream{})
}

func restartKeepsConnections(ctx context.Context, b *testbed, _ service, open standing) error {
	if err := b.throughRestarts(ctx, &stream{}); err != nil {
		return err
	}
	return open.check(b.timeouts)
}

func restartLosesNothing(ctx context.Context, b *testbed, unchanged service) error {
	before := firstStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	st := b.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() error {
		applied := b.described
		if err := b.drop(); err != nil {
			return err
		}
		if err := b.trafficIn(ctx, before, applied); err != nil {
			return fmt.Errorf("while no backend runs:\n\n%w", err)
		}
		return b.throughRestarts(ctx, st)
	})
	if err != nil {
		return fmt.Errorf("while the backend restarted:\n\n%w", err)
	}
	return nil
}

// throughRestarts restarts the backend repeatedly, with the same state and with others.
func (b *testbed) throughRestarts(ctx context.Context, st *stream) error {
	for _, next := range []step{firstStep(), secondStep(), firstStep()} {
		if b.sink != nil {
			if err := b.drop(); err != nil {
				return err
			}
		}
		if err := b.start(ctx, b.setup); err != nil {
			return err
		}
		if err := st.await(ctx, 3); err != nil {
			return err
		}
		if err := b.step(ctx, next); err != nil {
			return fmt.Errorf("after a restart:\n\n%w", err)
		}
		if err := st.await(ctx, 3); err != nil {
			return err
		}
	}
	return nil
}

// breakRules removes rules without the backend's knowledge.
func (b *testbed) breakRules(ctx context.Context) error {
	return b.hook(ctx, "break", b.factory.Break)
}

// breakHook is the function of the factory that removes rules.
const breakHook = "Break"

// breakError says that rules could not be removed, so that nothing is known about their repair.
type breakError struct{ error }

func (e *breakError) Unwrap() error { return e.error }

// isBroken checks that traffic fails without the removed rules.
func (b *testbed) isBroken(ctx context.Context, st step) error {
	brief := *b
	brief.timeouts.Answer = b.timeouts.Quiet
	brief.program = nil // do not wait for late results
	if brief.traffic(ctx, st) == nil {
		return &breakError{errors.New("the factory's Break does not break anything: all traffic still gets through")}
	}
	return nil
}

func driftIsRepaired(ctx context.Context, b *testbed) error {
	st := firstStep()
	if err := b.step(ctx, st); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return &breakError{err}
	}
	if b.factory.RepairsItself { // it may have repaired the damage already: the next case checks that
		if err := b.soon(ctx, func(b *testbed) error { return b.traffic(ctx, st) }); err != nil {
			return err
		}
		return b.driftDuringAChange(ctx)
	}
	if err := b.isBroken(ctx, st); err != nil {
		return err
	}
	if err := b.resync(ctx); err != nil {
		return err
	}
	return b.traffic(ctx, st)
}

// driftDuringAChange removes rules before a Sync and right after it, as a firewall does that flushes everything when it
// is reloaded.
func (b *testbed) driftDuringAChange(ctx context.Context) error {
	after := secondStep()
	if err := b.describe(after.services...); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return err
	}
	failed := b.sync(ctx) // it may not find what it changes
	if err := b.breakRules(ctx); err != nil {
		return err
	}
	if failed != nil {
		return b.retry(ctx, after)
	}
	if err := b.soon(ctx, func(b *testbed) error { return b.traffic(ctx, after) }); err != nil {
		return fmt.Errorf("after rules were removed before a Sync and after it:\n\n%w", err)
	}
	return nil
}

// soon calls try until it succeeds, at most as long as a repair may take. Only the last try waits the full answer
// timeout.
func (b *testbed) soon(ctx context.Context, try func(*testbed) error) error {
	brief := *b
	brief.timeouts.Answer = min(b.timeouts.Answer, time.Second)
	brief.program = nil
	var watch *machine.Watch
	if b.program != nil {
		watch = b.program.machine
	}
	for began := time.Now(); !overdue(watch, began, b.timeouts.repair); {
		if err := try(&brief); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return try(b)
}

func restartRepairs(ctx context.Context, b *testbed) error {
	st := firstStep()
	if err := b.step(ctx, st); err != nil {
		return err
	}
	if err := b.drop(); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return &breakError{err}
	}
	if err := b.isBroken(ctx, st); err != nil {
		return err
	}
	if err := b.start(ctx, b.setup); err != nil {
		return err
	}
	return b.step(ctx, st)
}
