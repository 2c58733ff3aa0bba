package testbed

import (
	"context"
	"slices"
	"time"
)

// settled retries failed flows for a while if the backend is a program: rules that it applies after the probe are late,
// not wrong. A flow counts as right only after several successes.
func (b *Testbed) settled(ctx context.Context, flows []Expectation, wrong []error) []error {
	p := b.Program
	if p == nil {
		return wrong
	}
	const copies = 8
	pause := 50 * time.Millisecond
	for began := time.Now(); !Overdue(p.Machine, began, p.Figures.Settle()); pause = pause * 3 / 2 {
		var open []int
		var again []Expectation
		for i, err := range wrong {
			if err != nil {
				open = append(open, i)
				again = append(again, flows[i])
			}
		}
		if len(open) == 0 {
			return wrong
		}
		select {
		case <-ctx.Done():
			return wrong
		case <-p.Host.Ended():
			wrong[open[0]] = p.Host.Failure()
			return wrong
		case <-time.After(pause):
		}
		still := make([]error, len(open))
		for i, err := range b.VerifyEach(ctx, slices.Repeat(again, copies)) {
			if i %= len(open); still[i] == nil {
				still[i] = err
			}
		}
		for i, err := range still {
			wrong[open[i]] = err
			p.Late = p.Late || err == nil
		}
	}
	return wrong
}
