package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// lifecycleCases are about everything but traffic: when a state takes effect, failures, restarts, and what others do to
// the dataplane.
func lifecycleCases() []testCase {
	return []testCase{
		{name: "what is described takes effect at Sync, not before", rules: "S43", inSimulation: true,
			run: nothingBeforeSync},
		{name: "calls that change nothing change nothing", rules: "S14", inSimulation: true, run: idempotentCalls},
		{name: "a Sync that is cancelled loses nothing", rules: "S46", inSimulation: true, run: cancelledSync},
		{name: "a Sync that fails loses nothing", rules: "S46", hook: "Fail",
			has: func(f Factory) bool { return f.Fail != nil }, run: failedSync},
		{name: "a restart keeps traffic, and corrects what has changed meanwhile", rules: "S44",
			run: restartKeepsTraffic},
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
			Target: serverAt(placeNamed(localPod1), s.env.Families[0])})
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
	if err := s.resync(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync after ForceResync: %w", err)
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

func failedSync(ctx context.Context, s *session) (err error) {
	before, after := sceneBefore(), sceneAfter()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	open, err := s.stand(before.services[0])
	if err != nil {
		return err
	}
	defer open.close()
	st := s.startStream(before.services[0], localPod1, remotePod1)
	defer func() {
		if failed := st.end(); failed != nil {
			err = fmt.Errorf("to a service that did not change, while Sync failed:\n\n%w", failed)
		}
	}()

	var repair func() error
	err = s.host.Do(func() (err error) {
		repair, err = s.factory.Fail(ctx, s.env)
		return err
	})
	if err != nil {
		return fmt.Errorf("make Sync fail: %w", err)
	}
	repaired := false
	doRepair := func() error {
		if repaired {
			return nil
		}
		repaired = true
		return s.host.Do(repair)
	}
	defer func() { err = errors.Join(err, doRepair()) }()

	// Two waves fail: what the first one described must not be lost with the second one.
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
	if err := doRepair(); err != nil {
		return fmt.Errorf("end the failure: %w", err)
	}
	if err := s.retry(ctx, after); err != nil {
		return err
	}
	return open.check(s.patience)
}

func restartKeepsTraffic(ctx context.Context, s *session) error {
	before, after := sceneBefore(), sceneAfter()
	if err := s.step(ctx, before); err != nil {
		return err
	}
	open := &standing{}
	if s.demands(StandingOverRestart) {
		var err error
		if open, err = s.stand(before.services[0]); err != nil {
			return err
		}
	}
	defer open.close()
	st := &stream{stop: make(chan struct{})}
	if s.demands(NewOverRestart) {
		st = s.startStream(before.services[0], localPod1, remotePod1)
	}
	err := s.throughRestarts(ctx, st, before, after)
	if failed := st.end(); failed != nil {
		return fmt.Errorf("to a service that did not change, while the backend restarted:\n\n%w", failed)
	}
	if err != nil {
		return err
	}
	return open.check(s.patience)
}

// demands reports whether the backend claims a feature. If it does not, that part of the case is noted as waived.
func (s *session) demands(f Feature) bool {
	if s.factory.lacks(f) {
		s.waived.add(f)
		return false
	}
	return true
}

// throughRestarts restarts the backend with the same state and with another one.
func (s *session) throughRestarts(ctx context.Context, st *stream, before, after step) error {
	inForce := s.told
	if err := s.drop(); err != nil {
		return err
	}
	if !s.factory.lacks(NewOverRestart) {
		if err := s.trafficIn(ctx, before, inForce); err != nil {
			return fmt.Errorf("while no backend runs:\n\n%w", err)
		}
	}
	for _, next := range []step{before, after, before} {
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
	if err := s.host.Do(func() error { return s.factory.Break(ctx, s.env) }); err != nil {
		return fmt.Errorf("break: %w", err)
	}
	return nil
}

// isBroken checks that traffic fails without the removed rules.
func (s *session) isBroken(ctx context.Context, st step) error {
	impatient := *s
	impatient.patience.answer = s.patience.quiet
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
	if err := s.resync(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return s.traffic(ctx, st)
}

// soon tries something until it is right, or for longer than a repair may take. If that takes long it asks for a resync
// once more, and waits in full only the last time.
func (s *session) soon(ctx context.Context, try func(*session) error) error {
	impatient := *s
	impatient.patience.answer = min(s.patience.answer, time.Second)
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
