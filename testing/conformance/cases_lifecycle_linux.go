package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// lifecycleCases are about everything but traffic: when a state takes effect, failures, restarts, and what others do to
// the dataplane.
func lifecycleCases() []testCase {
	stays := sceneBefore().services[0]
	return []testCase{
		{name: "what is described takes effect at Sync, not before", rules: "S43", stepwise: true, inSimulation: true,
			run: nothingBeforeSync},
		{name: "calls that change nothing change nothing", rules: "S14", stepwise: true, inSimulation: true, run: idempotentCalls},
		{name: "a Sync that is cancelled loses nothing", rules: "S46", stepwise: true, inSimulation: true, run: cancelledSync},
		{name: "a Sync that fails loses nothing", rules: "S46", stepwise: true, hook: "Fail",
			has: func(f Factory) bool { return f.Fail != nil }, run: whileConnected(stays, failedSync)},
		{name: "a restart keeps traffic, and corrects what has changed meanwhile", rules: "S44",
			run: restartKeepsTraffic},
		{name: "connections that stand survive a restart", rules: "S44",
			run: whileConnected(stays, restartKeepsConnections)},
		{name: "no new connection is lost while the backend restarts", rules: "S44",
			run: serving(stays, restartLosesNothing)},
		{name: "rules that somebody else removed come back", rules: "S44", hook: "Break",
			has: func(f Factory) bool { return f.Break != nil }, inSimulation: true, run: driftIsRepaired},
		{name: "rules that somebody else removed while no backend ran come back", rules: "S44", hook: "Break",
			has: func(f Factory) bool { return f.Break != nil }, inSimulation: true, run: restartRepairs},
		{name: "clean-up leaves nothing, and touches nothing of others", rules: "S50", hook: "Cleanup",
			has: func(f Factory) bool { return f.Cleanup != nil }, run: cleanupLeavesNothing},
	}
}

// scene is a state of several services between which the lifecycle cases move, and the traffic that proves it.
func scene(services ...service) step {
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

// The scene before and the scene after: one service stays, one changes its endpoints, one loses them all, one is
// deleted, one is created.
func sceneBefore() step {
	return scene(
		external(service{name: "stays", slot: 1, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "changes", slot: 2, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "empties", slot: 3, endpoints: at(localPod2)}),
		external(service{name: "goes", slot: 4, endpoints: at(localPod1, remotePod1)}))
}

func sceneAfter() step {
	st := scene(
		external(service{name: "stays", slot: 1, endpoints: at(localPod1, remotePod1)}),
		external(service{name: "changes", slot: 2, endpoints: at(localPod2, remotePod1, remotePod2)}),
		external(service{name: "empties", slot: 3}),
		external(service{name: "comes", slot: 5, endpoints: at(remotePod2)}))
	st.traffic = append(st.traffic,
		traffic{from: []string{localPod3, client}, to: externalDestinations, as: &service{name: "goes", slot: 4},
			want: leftAlone})
	return st
}

func nothingBeforeSync(ctx context.Context, s *session) error {
	before, after := sceneBefore(), sceneAfter()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	inForce := s.told
	if err := s.describe(after.services...); err != nil {
		return err
	}
	if err := s.trafficIn(ctx, before, inForce); err != nil {
		return fmt.Errorf("after a new state was described, and before Sync:\n\n%w", err)
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return s.traffic(ctx, after)
}

func idempotentCalls(ctx context.Context, s *session) error {
	before := sceneBefore()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	err := s.host.Do(func() error {
		for _, svc := range s.told.services {
			s.sink.SetService(svc)
		}
		for _, ep := range s.told.endpoints {
			s.sink.SetEndpoint(ep)
		}
		nobody := model.ServiceName{Namespace: "default", Name: "nobody"}
		s.sink.DeleteEndpoint(model.EndpointKey{Port: model.PortName{Service: nobody, Protocol: model.TCP},
			Target: network.PlaceNamed(localPod1).ServerAt(s.env.Families[0])})
		s.sink.DeleteService(nobody)
		return nil
	})
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.sync(ctx); err != nil {
			return fmt.Errorf("sync after calls that change nothing: %w", err)
		}
	}
	if err := s.resync(ctx); err != nil {
		return err
	}
	return s.traffic(ctx, before)
}

func cancelledSync(ctx context.Context, s *session) error {
	if err := s.step(ctx, sceneBefore()); err != nil {
		return err
	}
	after := sceneAfter()
	if err := s.describe(after.services...); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.sync(cancelled); err == nil {
		return s.traffic(ctx, after) // It would not be stopped; then the state must be applied.
	}
	return s.retry(ctx, after)
}

// retry does what a runner does after a failed Sync: it asks for a resync and calls Sync again, without describing
// anything again.
func (s *session) retry(ctx context.Context, now step) error {
	if err := s.resyncFailed(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync after a failed one: %w", err)
	}
	if err := s.traffic(ctx, now); err != nil {
		return fmt.Errorf("after a Sync that failed and one that did not:\n\n%w", err)
	}
	return nil
}

// failedSync makes two Syncs fail: what the first one's wave described must not be lost with the second one's.
func failedSync(ctx context.Context, s *session, unchanged service, open standing) error {
	before, after := sceneBefore(), sceneAfter()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	st := s.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() (err error) {
		var end func() error
		err = s.host.Do(func() (err error) {
			end, err = s.factory.Fail(ctx, s.env)
			return err
		})
		if err != nil {
			return fmt.Errorf("make Sync fail: %w", err)
		}
		repair := sync.OnceValue(func() error { return s.host.Do(end) })
		defer func() { err = errors.Join(err, repair()) }()

		half := sceneAfter()
		half.services = append(half.services[:2:2], before.services[2:]...)
		for _, wave := range []step{half, after} {
			if err := s.describe(wave.services...); err != nil {
				return err
			}
			if err := s.sync(ctx); err == nil {
				return errors.New("the factory's Fail does not make Sync fail")
			}
			if err := s.resyncFailed(); err != nil {
				return err
			}
			if err := st.await(ctx, 3); err != nil {
				return err
			}
		}
		if err := repair(); err != nil {
			return fmt.Errorf("end the failure: %w", err)
		}
		return s.retry(ctx, after)
	})
	if err != nil {
		return fmt.Errorf("while Sync failed:\n\n%w", err)
	}
	return open.check(s.patience)
}

func restartKeepsTraffic(ctx context.Context, s *session) error {
	if err := s.step(ctx, sceneBefore()); err != nil {
		return err
	}
	return s.throughRestarts(ctx, &stream{})
}

func restartKeepsConnections(ctx context.Context, s *session, _ service, open standing) error {
	if err := s.throughRestarts(ctx, &stream{}); err != nil {
		return err
	}
	return open.check(s.patience)
}

func restartLosesNothing(ctx context.Context, s *session, unchanged service) error {
	before := sceneBefore()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	st := s.startStream(unchanged, localPod1, remotePod1)
	err := st.during(func() error {
		applied := s.told
		if err := s.drop(); err != nil {
			return err
		}
		if err := s.trafficIn(ctx, before, applied); err != nil {
			return fmt.Errorf("while no backend runs:\n\n%w", err)
		}
		return s.throughRestarts(ctx, st)
	})
	if err != nil {
		return fmt.Errorf("while the backend restarted:\n\n%w", err)
	}
	return nil
}

// throughRestarts restarts the backend with the same state and with another one.
func (s *session) throughRestarts(ctx context.Context, st *stream) error {
	for _, next := range []step{sceneBefore(), sceneAfter(), sceneBefore()} {
		if s.sink != nil {
			if err := s.drop(); err != nil {
				return err
			}
		}
		if err := s.start(ctx, s.setup); err != nil {
			return err
		}
		if err := st.await(ctx, 3); err != nil {
			return err
		}
		if err := s.step(ctx, next); err != nil {
			return fmt.Errorf("after a restart:\n\n%w", err)
		}
		if err := st.await(ctx, 3); err != nil {
			return err
		}
	}
	return nil
}

// breakRules removes rules behind the backend's back.
func (s *session) breakRules(ctx context.Context) error {
	return s.hook(ctx, "break", s.factory.Break)
}

// isBroken checks that traffic fails without the removed rules.
func (s *session) isBroken(ctx context.Context, st step) error {
	impatient := *s
	impatient.patience.Answer = s.patience.Quiet
	impatient.program = nil // nothing is waited for
	if impatient.traffic(ctx, st) == nil {
		return errors.New("the factory's Break does not break anything: all traffic still gets through")
	}
	return nil
}

func driftIsRepaired(ctx context.Context, s *session) error {
	st := sceneBefore()
	if err := s.step(ctx, st); err != nil {
		return err
	}
	if err := s.breakRules(ctx); err != nil {
		return err
	}
	if s.factory.RepairsItself { // too soon, perhaps, to see the damage: the next case does
		return s.soon(ctx, func(s *session) error { return s.traffic(ctx, st) })
	}
	if err := s.isBroken(ctx, st); err != nil {
		return err
	}
	if err := s.resync(ctx); err != nil {
		return err
	}
	return s.traffic(ctx, st)
}

// soon tries something until it is right, or for longer than a repair may take. It waits for answers in full only the
// last time.
func (s *session) soon(ctx context.Context, try func(*session) error) error {
	impatient := *s
	impatient.patience.Answer = min(s.patience.Answer, time.Second)
	impatient.program = nil
	for deadline := time.Now().Add(s.patience.repair); time.Now().Before(deadline); {
		if err := try(&impatient); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return try(s)
}

func restartRepairs(ctx context.Context, s *session) error {
	st := sceneBefore()
	if err := s.step(ctx, st); err != nil {
		return err
	}
	if err := s.drop(); err != nil {
		return err
	}
	if err := s.breakRules(ctx); err != nil {
		return err
	}
	if err := s.isBroken(ctx, st); err != nil {
		return err
	}
	if err := s.start(ctx, s.setup); err != nil {
		return err
	}
	return s.step(ctx, st)
}
