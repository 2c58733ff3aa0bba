package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// outageCases cover API servers that become unreachable and come back. Stale endpoints after that are the worst fault:
// everything looks fine, but connections go to pods that no longer exist (cilium/cilium#48050). No case is about a
// server that stays silent because its storage was restored (S68): a program that notices it needs minutes, longer than
// a whole run.
func outageCases() []Case {
	return []Case{
		{Name: "what changed while the API server was away is right when it is back, with an expired history",
			Rules: "S43", Outage: true, run: throughOutage(program.HistoryGone, awayFor)},
		{Name: "an API server that comes back with lower resource versions is followed", Rules: "S43", Outage: true,
			run: throughOutage(program.LowerVersions, awayFor)},
		{Name: "an API server that restarts is followed", Rules: "S43", Outage: true,
			run: throughOutage(program.SameHistory, 0)},
		{Name: "an API server that is silent after a restore costs no connection, and is followed later",
			Rules: "S43", Outage: true, run: throughSilence},
	}
}

const (
	// awayFor is how long an API server is away: longer than the first retries of client-go.
	awayFor = 3 * time.Second
	// silentFor is how long an API server is silent: longer than a first pause of client-go, so that programs have
	// connected to it.
	silentFor = 5 * time.Second
	// maxDelay is how long a program may take to reconnect to its API server, because client-go's pauses double with each
	// try, or to catch up with many changes.
	maxDelay = 2 * time.Minute
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
		// The stream is to a service that stays as it is.
		st := b.startStream(before.services[0], localPod1, remotePod1)
		err := st.during(func() error {
			if err := b.away(ctx); err != nil {
				return err
			}
			over := time.After(length)
			if err := b.writeOnly(ctx, after.services...); err != nil {
				return err
			}
			return st.until(ctx, over)
		})
		if err != nil {
			return fmt.Errorf("while the API server was away:\n\n%w", err)
		}
		return b.outageEnds(ctx, r, after)
	}
}

// throughSilence replaces the API server with one that was restored from a backup of an earlier state. It accepts
// connections and sends nothing. As a load balancer would, the case ends these connections after a while, and the
// server answers.
func throughSilence(ctx context.Context, b *bed) error {
	backup := firstStep()
	for _, st := range []step{backup, secondStep()} {
		if err := b.step(ctx, st); err != nil {
			return err
		}
	}
	backup.traffic = append(backup.traffic, traffic{from: []string{localPod3, client}, to: externalDestinations,
		as: &service{Name: "comes", Slot: 5}, want: leftAlone})
	stays := backup.services[0]
	open, err := b.stand(b.flows(stays, model.TCP, paths(fromAll, everywhere)))
	if err != nil {
		return err
	}
	defer open.close()
	st := b.startStream(stays, localPod1, remotePod1)
	return st.during(func() error {
		if err := b.away(ctx); err != nil {
			return err
		}
		if err := b.writeOnly(ctx, backup.services...); err != nil {
			return err
		}
		if err := b.back(ctx, program.Silent); err != nil {
			return err
		}
		err := st.until(ctx, time.After(silentFor))
		if err == nil {
			err = open.check(b.Timeouts)
		}
		if err != nil {
			return fmt.Errorf("while the API server was silent:\n\n%w", err)
		}
		if err := b.away(ctx); err != nil {
			return err
		}
		if err := b.outageEnds(ctx, program.LowerVersions, backup); err != nil {
			return err
		}
		return open.check(b.Timeouts)
	})
}

// away takes the API server away.
func (b *bed) away(ctx context.Context) error {
	return b.outage("take the API server away", func(api outages) error { return api.Away(ctx) })
}

// back brings the API server back.
func (b *bed) back(ctx context.Context, r program.Return) error {
	return b.outage("bring the API server back", func(api outages) error { return api.Back(ctx, r) })
}

func (b *bed) outage(what string, f func(outages) error) error {
	api, ok := b.Program.Host.(outages)
	if !ok {
		return &testbed.SetupError{Err: errors.New("the API server cannot be taken away")}
	}
	if err := b.Host.Do(func() error { return f(api) }); err != nil {
		return &testbed.SetupError{Err: fmt.Errorf("%s: %w", what, err)}
	}
	return nil
}

// outageEnds brings the API server back, and waits until the program serves the state that was written meanwhile.
func (b *bed) outageEnds(ctx context.Context, r program.Return, after step) error {
	if err := b.back(ctx, r); err != nil {
		return err
	}
	if err := b.patiently(ctx, after); err != nil {
		return fmt.Errorf("after the API server came back:\n\n%w", err)
	}
	return nil
}

// patiently is step for a program that may be late.
func (b *bed) patiently(ctx context.Context, st step) error {
	b.Program.Grace = maxDelay
	defer func() { b.Program.Grace = 0 }()
	return b.step(ctx, st)
}

// writeOnly writes services for a program, and does not wait until it serves them.
func (b *bed) writeOnly(ctx context.Context, services ...service) error {
	if err := b.Describe(services...); err != nil {
		return err
	}
	return b.Host.Do(func() error { return b.Program.Write(ctx) })
}
