package speed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// write writes changes to the API.
func (r *measurement) write(ctx context.Context, changes ...*change) error {
	objects := map[string]metav1.Object{} // the last version by name
	var order []string
	for _, c := range changes {
		name := c.object.GetName()
		if objects[name] == nil {
			order = append(order, name)
		}
		objects[name] = c.object
	}
	list := make([]metav1.Object, 0, len(order))
	for _, name := range order {
		list = append(list, objects[name])
	}
	return r.put(ctx, list...)
}

// writeNow writes changes that will all be probed, and returns how long that took. Their latency counts from now.
func (r *measurement) writeNow(ctx context.Context, changes ...*change) (took time.Duration, err error) {
	p := newProber(r.ask, r.Endpoints)
	now := time.Now()
	for _, c := range changes {
		c.since, c.probed = now, true
	}
	err = r.follow(ctx, p, func(ctx context.Context) error {
		p.add(changes)
		err := r.write(ctx, changes...)
		took = time.Since(now)
		return err
	})
	return took, err
}

// spread returns the service of the n-th change, far from the previous one.
func (r *measurement) spread(n int) int { return n * 7919 % r.Services }

// changeOne makes single changes, each while the program is idle.
func (r *measurement) changeOne(ctx context.Context) (changes []*change, judge *report.Judge, err error) {
	end := time.Now().Add(r.SingleFor)
	var writing time.Duration
	for len(changes) < r.Single && (time.Now().Before(end) || len(changes) < 3) {
		if err := r.settle(ctx); err != nil {
			return changes, nil, err
		}
		c := r.replace(r.spread(len(changes)))
		changes = append(changes, c)
		took, err := r.writeNow(ctx, c)
		if err != nil {
			return changes, nil, err
		}
		writing += took
	}
	if judge, err = r.again(ctx, false, changes); err == nil {
		judge.Write = Milliseconds(writing / time.Duration(max(len(changes), 1)))
	}
	return changes, judge, err
}

// changeMany changes many services at once, or all.
func (r *measurement) changeMany(ctx context.Context) (changes []*change, judge *report.Judge, err error) {
	n := min(r.Burst, r.Services)
	for i := range n {
		changes = append(changes, r.replace(i*r.Services/n))
	}
	took, err := r.writeNow(ctx, changes...)
	if err != nil {
		return changes, nil, err
	}
	if judge, err = r.again(ctx, true, changes); err == nil {
		judge.Write = Milliseconds(took)
	}
	return changes, judge, err
}

// mostProbed is the maximum number of changes probed per second: at a higher rate the judge would use more CPU time
// than the program.
const mostProbed = 50

// steadily is the result of changes made at a fixed rate.
type steadily struct {
	written, replaced int
	probed            []*change
	late              []time.Duration // of each write
}

// changeSteadily makes changes at a rate until stop is closed, at most this many, whatever the program does. Due
// changes are written together. The latency of a change is unknown if its endpoint is replaced again before the change
// shows.
func (r *measurement) changeSteadily(ctx context.Context, rate, most int, stop <-chan struct{}) (*steadily, error) {
	s := &steadily{}
	p := newProber(r.ask, r.Endpoints)
	each := (rate + mostProbed - 1) / mostProbed
	err := r.follow(ctx, p, func(ctx context.Context) error {
		began := time.Now()
		due := func(n int) time.Time { return began.Add(time.Duration(n) * time.Second / time.Duration(rate)) }
		for s.written < most {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-stop:
				return nil
			case <-time.After(time.Until(due(s.written))):
			}
			var batch []*change
			for now := time.Now(); s.written < most && !due(s.written).After(now); s.written++ {
				c := r.replace(r.spread(s.written))
				c.since = due(s.written)
				if c.probed = s.written%each == 0; c.probed {
					s.probed = append(s.probed, c)
				}
				batch = append(batch, c)
			}
			p.add(batch)
			if err := r.write(ctx, batch...); err != nil {
				return err
			}
			for now, i := time.Now(), 0; i < len(batch); i++ {
				s.late = append(s.late, now.Sub(batch[i].since))
			}
		}
		return nil
	})
	s.replaced = p.replaced
	return s, err
}

// measureRate makes changes at a rate, and again while the rules are being listed.
func (r *measurement) measureRate(ctx context.Context, rate int, figures *report.SpeedRun) error {
	figures.Rates = append(figures.Rates, report.Rate{PerSecond: rate})
	into := &figures.Rates[len(figures.Rates)-1]
	name := fmt.Sprintf("%d a second", rate)
	var pass *steadily
	err := r.part(ctx, name, &into.Latency, func(ctx context.Context) (changes []*change, _ *report.Judge, err error) {
		pass, err = r.changeSteadily(ctx, rate, max(1, int(r.RateFor.Seconds()*float64(rate))), nil)
		return pass.probed, nil, err
	})
	if pass != nil {
		into.Written, into.Probed, into.Replaced = pass.written, len(pass.probed), pass.replaced
		if len(pass.late) > 0 {
			into.Late = Percentile99(slices.Sorted(slices.Values(pass.late)))
			r.Say("%v: %s: %d written, 99 of 100 within %.1f ms of when they were due", r.Size, name, pass.written, into.Late)
		}
	}
	if err != nil {
		return err
	}
	return r.listBeside(ctx, rate, into)
}

// listBeside starts a listing of the rules while changes are made at a rate, and ends with the listing.
func (r *measurement) listBeside(ctx context.Context, rate int, into *report.Rate) error {
	if _, can := r.host.(lister); !can {
		return nil
	}
	stop := make(chan struct{})
	listed := make(chan *report.Listing, 1)
	go func() {
		defer close(stop)
		select {
		case <-ctx.Done():
		case <-time.After(r.ListAfter):
		}
		listed <- r.list(ctx)
	}()
	var pass *steadily
	var changes report.Latency
	err := r.part(ctx, fmt.Sprintf("%d a second beside a listing", rate), &changes,
		func(ctx context.Context) (_ []*change, _ *report.Judge, err error) {
			pass, err = r.changeSteadily(ctx, rate, rate*int((r.ListAfter+r.Listing).Seconds()+10), stop)
			return pass.probed, nil, err
		})
	if into.Listing = <-listed; into.Listing != nil {
		changes.Quantiles = nil // not part of any chart
		into.Listing.Changes = changes
	}
	return err
}

// list lists the rules. It returns nil if the host cannot.
func (r *measurement) list(ctx context.Context) *report.Listing {
	host, can := r.host.(lister)
	if !can {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Listing)
	defer cancel()
	var l report.Listing
	began := time.Now()
	err := osthread.In(r.n.Node.FD(), func() (err error) {
		l.Command, l.Bytes, err = host.List(ctx)
		return err
	})
	l.Time = Milliseconds(time.Since(began))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		l.Unfinished = true
		r.Say("%v: %s did not finish in %v", r.Size, l.Command, r.Listing)
	case err != nil:
		l.Problem = err.Error()
		r.Say("%v: %v", r.Size, err)
	default:
		r.Say("%v: %s: %.1f ms for %d bytes", r.Size, l.Command, l.Time, l.Bytes)
	}
	return &l
}
