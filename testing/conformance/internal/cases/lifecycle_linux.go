package cases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// lifecycleCases cover when a state takes effect, failures, restarts, and foreign changes to the dataplane.
func lifecycleCases() []Case {
	stays := firstStep().services[0]
	return []Case{
		{Name: "what is described takes effect at Sync, not before", Rules: "S43", Stepwise: true, inSimulation: true,
			run: nothingBeforeSync},
		{Name: "calls that change nothing change nothing", Rules: "S14", Stepwise: true, inSimulation: true,
			run: idempotentCalls},
		{Name: "a Sync that is cancelled loses nothing", Rules: "S46", Stepwise: true, inSimulation: true,
			run: cancelledSync},
		{Name: "a Sync that fails loses nothing", Rules: "S46", Stepwise: true, Hook: "Fail",
			has: func(f backend.Factory) bool { return f.Fail != nil }, run: whileConnected(stays, failedSync)},
		{Name: "a restart keeps traffic, and corrects what has changed meanwhile", Rules: "S44",
			run: restartKeepsTraffic},
		{Name: "connections that stand survive a restart", Rules: "S44",
			run: whileConnected(stays, restartKeepsConnections)},
		{Name: "no new connection is lost while the backend restarts", Rules: "S44",
			run: serving(stays, restartLosesNothing)},
		{Name: "rules that somebody else removed come back", Rules: "S44", Hook: BreakHook,
			has: func(f backend.Factory) bool { return f.Break != nil }, inSimulation: true, run: driftIsRepaired},
		{Name: "rules that somebody else removed while no backend ran come back", Rules: "S44", Hook: BreakHook,
			has: func(f backend.Factory) bool { return f.Break != nil }, inSimulation: true, run: restartRepairs},
		{Name: "clean-up leaves nothing, and touches nothing of others", Rules: "S50", Hook: "Cleanup",
			has: func(f backend.Factory) bool { return f.Cleanup != nil }, run: cleanupLeavesNothing},
	}
}

// stepOf returns a step with these services, and with traffic that checks all of them.
func stepOf(services ...service) step {
	st := step{services: services}
	for i, svc := range services {
		svc = svc.WithDefaults(i)
		var places []string
		for _, e := range svc.Endpoints {
			places = append(places, e.At)
		}
		if len(places) == 0 {
			st.traffic = append(st.traffic,
				traffic{of: svc.Name, from: []string{localPod3, client}, to: everywhere, want: refused})
			continue
		}
		st.traffic = append(st.traffic,
			traffic{of: svc.Name, from: []string{localPod3}, to: toCluster, want: keeping(places...)},
			traffic{of: svc.Name, from: []string{theNode, client}, to: externalDestinations,
				want: masquerading(places...)})
	}
	return st
}

// The lifecycle cases change from the first step to the second: one service stays, one changes its endpoints, one loses
// all of them, one is deleted, one is created.
func firstStep() step {
	return stepOf(
		external(service{Name: "stays", Slot: 1, Endpoints: cluster.At(localPod1, remotePod1)}),
		external(service{Name: "changes", Slot: 2, Endpoints: cluster.At(localPod1, remotePod1)}),
		external(service{Name: "empties", Slot: 3, Endpoints: cluster.At(localPod2)}),
		external(service{Name: "goes", Slot: 4, Endpoints: cluster.At(localPod1, remotePod1)}))
}

func secondStep() step {
	st := stepOf(
		external(service{Name: "stays", Slot: 1, Endpoints: cluster.At(localPod1, remotePod1)}),
		external(service{Name: "changes", Slot: 2, Endpoints: cluster.At(localPod2, remotePod1, remotePod2)}),
		external(service{Name: "empties", Slot: 3}),
		external(service{Name: "comes", Slot: 5, Endpoints: cluster.At(remotePod2)}))
	st.traffic = append(st.traffic,
		traffic{from: []string{localPod3, client}, to: externalDestinations, as: &service{Name: "goes", Slot: 4},
			want: leftAlone})
	return st
}

func nothingBeforeSync(ctx context.Context, b *bed) error {
	before, after := firstStep(), secondStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	described := b.Described
	if err := b.Describe(after.services...); err != nil {
		return err
	}
	if err := b.trafficIn(ctx, before, described); err != nil {
		return fmt.Errorf("after a new state was described, and before Sync:\n\n%w", err)
	}
	if err := b.Sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return b.traffic(ctx, after)
}

func idempotentCalls(ctx context.Context, b *bed) error {
	before := firstStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	err := b.Host.Do(func() error {
		for _, svc := range b.Described.Services {
			b.Sink.SetService(svc)
		}
		for _, ep := range b.Described.Endpoints {
			b.Sink.SetEndpoint(ep)
		}
		nobody := model.ServiceName{Namespace: "default", Name: "nobody"}
		b.Sink.DeleteEndpoint(model.EndpointKey{Port: model.PortName{Service: nobody, Protocol: model.TCP},
			Target: network.HostNamed(localPod1).ServerAt(b.Env.Families[0])})
		b.Sink.DeleteService(nobody)
		return nil
	})
	if err != nil {
		return err
	}
	for range 2 {
		if err := b.Sync(ctx); err != nil {
			return fmt.Errorf("sync after calls that change nothing: %w", err)
		}
	}
	if err := b.Resync(ctx); err != nil {
		return err
	}
	return b.traffic(ctx, before)
}

func cancelledSync(ctx context.Context, b *bed) error {
	if err := b.step(ctx, firstStep()); err != nil {
		return err
	}
	after := secondStep()
	if err := b.Describe(after.services...); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.Sync(cancelled); err == nil {
		return b.traffic(ctx, after) // Sync returned no error despite the cancellation, so the state must be applied.
	}
	return b.retry(ctx, after)
}

// retry does what kubeproxy.Run does after a failed Sync: it requests a resync and calls Sync again, without repeating
// any change.
func (b *bed) retry(ctx context.Context, now step) error {
	if err := b.ResyncFailed(); err != nil {
		return err
	}
	if err := b.Sync(ctx); err != nil {
		return fmt.Errorf("sync after a failed one: %w", err)
	}
	if err := b.traffic(ctx, now); err != nil {
		return fmt.Errorf("after a Sync that failed and one that did not:\n\n%w", err)
	}
	return nil
}

// failedSync makes two Syncs fail. The second failure must not lose the changes of the first wave.
func failedSync(ctx context.Context, b *bed, unchanged service, open standing) error {
	before, after := firstStep(), secondStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	st := b.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() (err error) {
		var end func() error
		err = b.Host.Do(func() (err error) {
			end, err = b.Factory.Fail(ctx, b.Env)
			return err
		})
		if err != nil {
			return fmt.Errorf("make Sync fail: %w", err)
		}
		repair := sync.OnceValue(func() error { return b.Host.Do(end) })
		defer func() { err = errors.Join(err, repair()) }()

		half := secondStep()
		half.services = append(half.services[:2:2], before.services[2:]...)
		for _, wave := range []step{half, after} {
			if err := b.Describe(wave.services...); err != nil {
				return err
			}
			if err := b.Sync(ctx); err == nil {
				return errors.New("the factory's Fail does not make Sync fail")
			}
			if err := b.ResyncFailed(); err != nil {
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
	return open.check(b.Timeouts)
}

func restartKeepsTraffic(ctx context.Context, b *bed) error {
	if err := b.step(ctx, firstStep()); err != nil {
		return err
	}
	return b.throughRestarts(ctx, &stream{})
}

func restartKeepsConnections(ctx context.Context, b *bed, _ service, open standing) error {
	if err := b.throughRestarts(ctx, &stream{}); err != nil {
		return err
	}
	return open.check(b.Timeouts)
}

func restartLosesNothing(ctx context.Context, b *bed, unchanged service) error {
	before := firstStep()
	if err := b.step(ctx, before); err != nil {
		return err
	}
	st := b.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() error {
		applied := b.Described
		if err := b.Drop(); err != nil {
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
func (b *bed) throughRestarts(ctx context.Context, st *stream) error {
	for _, next := range []step{firstStep(), secondStep(), firstStep()} {
		if b.Sink != nil {
			if err := b.Drop(); err != nil {
				return err
			}
		}
		if err := b.Start(ctx, b.Setup); err != nil {
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
func (b *bed) breakRules(ctx context.Context) error {
	return b.Hook(ctx, "break", b.Factory.Break)
}

// BreakHook is the function of the factory that removes rules.
const BreakHook = "Break"

// BreakError says that rules could not be removed, so that nothing is known about their repair.
type BreakError struct{ error }

func (e *BreakError) Unwrap() error { return e.error }

// isBroken checks that traffic fails without the removed rules.
func (b *bed) isBroken(ctx context.Context, st step) error {
	brief := b.copy()
	brief.Timeouts.Answer = b.Timeouts.Quiet
	brief.Program = nil // do not wait for late results
	if brief.traffic(ctx, st) == nil {
		return &BreakError{errors.New("the factory's Break does not break anything: all traffic still gets through")}
	}
	return nil
}

func driftIsRepaired(ctx context.Context, b *bed) error {
	st := firstStep()
	if err := b.step(ctx, st); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return &BreakError{err}
	}
	if b.Factory.RepairsItself { // it may have repaired the damage already: the next case checks that
		if err := b.soon(ctx, func(b *bed) error { return b.traffic(ctx, st) }); err != nil {
			return err
		}
		return b.driftDuringAChange(ctx)
	}
	if err := b.isBroken(ctx, st); err != nil {
		return err
	}
	if err := b.Resync(ctx); err != nil {
		return err
	}
	return b.traffic(ctx, st)
}

// driftDuringAChange removes rules before a Sync and right after it, as a firewall does that flushes everything when it
// is reloaded.
func (b *bed) driftDuringAChange(ctx context.Context) error {
	after := secondStep()
	if err := b.Describe(after.services...); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return err
	}
	failed := b.Sync(ctx) // it may not find what it changes
	if err := b.breakRules(ctx); err != nil {
		return err
	}
	if failed != nil {
		return b.retry(ctx, after)
	}
	if err := b.soon(ctx, func(b *bed) error { return b.traffic(ctx, after) }); err != nil {
		return fmt.Errorf("after rules were removed before a Sync and after it:\n\n%w", err)
	}
	return nil
}

// soon calls try until it succeeds, at most as long as a repair may take. Only the last try waits the full answer
// timeout.
func (b *bed) soon(ctx context.Context, try func(*bed) error) error {
	brief := b.copy()
	brief.Timeouts.Answer = min(b.Timeouts.Answer, time.Second)
	brief.Program = nil
	var watch *machine.Watch
	if b.Program != nil {
		watch = b.Program.Machine
	}
	for began := time.Now(); !testbed.Overdue(watch, began, b.Timeouts.Repair); {
		if err := try(brief); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return try(b)
}

func restartRepairs(ctx context.Context, b *bed) error {
	st := firstStep()
	if err := b.step(ctx, st); err != nil {
		return err
	}
	if err := b.Drop(); err != nil {
		return err
	}
	if err := b.breakRules(ctx); err != nil {
		return &BreakError{err}
	}
	if err := b.isBroken(ctx, st); err != nil {
		return err
	}
	if err := b.Start(ctx, b.Setup); err != nil {
		return err
	}
	return b.step(ctx, st)
}
