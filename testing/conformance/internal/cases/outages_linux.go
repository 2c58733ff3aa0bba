package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// outageCases cover API servers that become unreachable and come back. Stale endpoints after that are the worst fault:
// everything looks fine, but connections go to pods that no longer exist (cilium/cilium#48050). No case is about a
// server that is silent because its storage was restored (S68): a program that notices it needs minutes, longer than a
// whole run.
func outageCases() []Case {
	return []Case{
		{Name: "what changed while the API server was away is right when it is back, with an expired history",
			Rules: "S43", Outage: true, run: throughOutage(program.HistoryGone, awayFor)},
		{Name: "an API server that comes back with lower resource versions is followed", Rules: "S43", Outage: true,
			run: throughOutage(program.LowerVersions, awayFor)},
		{Name: "an API server that restarts is followed", Rules: "S43", Outage: true,
			run: throughOutage(program.SameHistory, 0)},
	}
}

const (
	// awayFor is how long an API server is away: longer than the first retries of client-go.
	awayFor = 3 * time.Second
	// backWithin is how long a program may take to reconnect to its API server: client-go's pauses double with each
	// try.
	backWithin = 2 * time.Minute
)

// outages are the optional methods of a host whose API server can go away.
type outages interface {
	Away(ctx context.Context) error
	Back(ctx context.Context, r program.Return) error
}

// throughOutage makes changes while the API server is away.
func throughOutage(r program.Return, length time.Duration) func(context.Context, *bed) error {
	return func(ctx context.Context, b *bed) error {
		before, after := firstStep(), secondStep()
		if err := b.step(ctx, before); err != nil {
			return err
		}
		api, ok := b.Program.Host.(outages)
		if !ok {
			return &testbed.SetupError{Err: errors.New("the API server cannot be taken away")}
		}
		// The stream is to a service that stays as it is.
		st := b.startStream(before.services[0], localPod1, remotePod1)
		err := st.during(func() error {
			if err := b.Host.Do(func() error { return api.Away(ctx) }); err != nil {
				return &testbed.SetupError{Err: fmt.Errorf("take the API server away: %w", err)}
			}
			over := time.After(length)
			if err := b.writeOnly(ctx, after.services...); err != nil {
				return err
			}
			select {
			case <-over:
				return st.await(ctx, 3)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil {
			return fmt.Errorf("while the API server was away:\n\n%w", err)
		}
		return b.outageEnds(ctx, api, r, after)
	}
}

// outageEnds brings the API server back, and waits until the program serves the state that was written meanwhile.
func (b *bed) outageEnds(ctx context.Context, api outages, r program.Return, after step) error {
	if err := b.Host.Do(func() error { return api.Back(ctx, r) }); err != nil {
		return &testbed.SetupError{Err: fmt.Errorf("bring the API server back: %w", err)}
	}
	b.Program.Grace = backWithin
	err := b.Sync(ctx)
	b.Program.Grace = 0
	if err == nil {
		err = b.traffic(ctx, after)
	}
	if err != nil {
		return fmt.Errorf("after the API server came back:\n\n%w", err)
	}
	return nil
}

// writeOnly writes services for a program, and does not wait until it serves them.
func (b *bed) writeOnly(ctx context.Context, services ...service) error {
	if err := b.Describe(services...); err != nil {
		return err
	}
	return b.Host.Do(func() error { return b.Program.Write(ctx) })
}
