package conformance

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// compared is a flow, and how it ended on both sides.
type compared struct {
	expectation
	to    destination
	of    string                     // the service
	seen  [2]map[string]network.Seen // by what happened, in words; each with an example
	tried int                        // times on each side
}

// strays is what words says if a client with affinity does not stay.
const strays = "delivered to one endpoint and then to another"

// words says how a flow ended. Which of its endpoints a client with affinity is sent to is left to chance.
func (f *compared) words(s network.Seen) string {
	switch {
	case s.Verdict == oracle.Deliver && f.out.AffinityTimeout > 0 && f.check(s) == nil:
		return "delivered to an endpoint of the port"
	case s.Verdict == 0:
		return "something else: " + s.Detail
	case s.Accepted:
		return s.Observation.String() + " after the connection was accepted"
	}
	return s.Observation.String()
}

// alike reports whether a flow has ended in the same ways on both sides.
func (f *compared) alike() bool {
	return maps.EqualFunc(f.seen[0], f.seen[1], func(network.Seen, network.Seen) bool { return true })
}

// wrong returns what a side did that the oracle does not expect, if there is something.
func (f *compared) wrong(side int) (s network.Seen, wrong bool) {
	for _, text := range slices.Sorted(maps.Keys(f.seen[side])) {
		if s := f.seen[side][text]; text == strays || f.check(s) != nil {
			return s, true
		}
	}
	return s, false
}

// remarkable reports whether a flow has ended differently on both sides, or wrongly on both.
func (f *compared) remarkable() bool {
	_, wrong := f.wrong(0)
	return wrong || !f.alike()
}

// certain is how many tries show again what is left to chance.
const certain = 20

// singleTries is after how many tries with one result there is thought to be no other.
const singleTries = 12

// forget is for trying a flow anew.
func (f *compared) forget() { f.seen, f.tried = [2]map[string]network.Seen{{}, {}}, 0 }

// enough reports whether a flow has been tried so often that the sides are as different as they look.
func (f *compared) enough() bool {
	all := maps.Clone(f.seen[0])
	maps.Copy(all, f.seen[1])
	leftToChance := len(f.seen[0]) > 1 || len(f.seen[1]) > 1
	return f.alike() || f.tried >= attempts(len(all)) || !leftToChance && f.tried >= singleTries
}

// class says in a few words what a side does with flows like this.
func (f *compared) class(side int) string {
	var words []string
	for text, s := range f.seen[side] {
		if text == strays {
			words = append(words, "moves clients that have affinity")
		} else {
			words = append(words, f.classOf(s))
		}
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " or ")
}

func (f *compared) classOf(s network.Seen) string {
	switch {
	case s.Accepted:
		return "accepts and resets"
	case s.Verdict == oracle.Reject:
		return "refuses"
	case s.Verdict == oracle.Drop:
		return "drops"
	case s.Verdict == oracle.NotOurs, s.Verdict == oracle.Deliver && s.Endpoint == f.Destination:
		return "leaves alone"
	case s.Verdict != oracle.Deliver:
		return "does something else"
	}
	text := "delivers"
	known := slices.ContainsFunc(f.out.Endpoints, func(d oracle.Destination) bool { return d.Endpoint == s.Endpoint })
	if !known && f.check(s) != nil {
		text += " to an unexpected endpoint"
	}
	switch {
	case !f.delivered(0) || !f.delivered(1) || f.out.AffinityTimeout > 0 && f.check(s) == nil:
		return text // the source is no difference, or left to chance with the endpoint
	case s.Source == f.Source:
		return text + " with the client's source"
	}
	return text + " with another source"
}

// delivered reports whether a side has delivered the flow at least once.
func (f *compared) delivered(side int) bool {
	for _, s := range f.seen[side] {
		if s.Verdict == oracle.Deliver {
			return true
		}
	}
	return false
}

// kind is the same for flows that end in the same ways, for the same reason.
func (f *compared) kind() string {
	rule := ""
	for _, reason := range f.out.Reasons {
		rule = cmp.Or(reason.Rule, rule)
	}
	return fmt.Sprint(rule, "|", f.class(0), "|", f.class(1), "|", f.alike())
}

// title says what is remarkable.
func (f *compared) title(names [2]string) string {
	from := map[oracle.SourceKind]string{oracle.LocalPod: "a pod of the node", oracle.Node: "the node itself",
		oracle.RemotePod: "a pod of another node", oracle.External: "outside"}[f.From]
	one, other := f.class(0), f.class(1)
	text := fmt.Sprintf("from %s to the %v: ", from, f.to)
	switch {
	case f.alike():
		return text + "not as expected, it " + one + " with both"
	case one == other:
		return text + fmt.Sprintf("%s and %s: it %s, but not to the same endpoints", names[0], names[1], one)
	}
	return text + fmt.Sprintf("%s %s, %s %s", names[0], one, names[1], other)
}

// differing returns the flows that end differently on both sides, or wrongly on both, and still do after a while.
func (c *comparison) differing(ctx context.Context, flows []*compared) ([]*compared, error) {
	open, err := c.tryAll(ctx, flows, 4)
	pause := 50 * time.Millisecond
	settle := max(c.sides[0].figures.settle(), c.sides[1].figures.settle())
	for deadline := time.Now().Add(settle); err == nil && len(open) > 0 && time.Now().Before(deadline); pause *= 2 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		for _, f := range open {
			if err := c.expect(f, f.Attempt); err != nil {
				return nil, err
			}
		}
		open, err = c.tryAll(ctx, open, certain)
	}
	return open, err
}

// tryAll tries flows until it is sure which of them are remarkable, and returns these. Where silence is right it is not
// waited for long, unless the flow looks remarkable: an answer may be late. copies is how often each is tried at first.
func (c *comparison) tryAll(ctx context.Context, flows []*compared, copies int) ([]*compared, error) {
	if err := c.try(ctx, flows, copies, false); err != nil {
		return nil, err
	}
	unlike := func(f *compared) bool { return !f.remarkable() }
	left := slices.DeleteFunc(slices.Clone(flows), unlike)
	for _, f := range left {
		f.forget()
	}
	for copies := singleTries; len(left) > 0; copies *= 2 {
		if err := c.try(ctx, left, min(copies, 32), true); err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, (*compared).enough)
	}
	return slices.DeleteFunc(slices.Clone(flows), unlike), ctx.Err()
}

// try makes connections of each flow on both sides. Those of clients with affinity come one after the other.
func (c *comparison) try(ctx context.Context, flows []*compared, copies int, patient bool) error {
	var free, sticky []*compared
	for _, f := range flows {
		f.DropIsRight = !patient && f.allowsSilence()
		f.tried += copies
		if f.out.AffinityTimeout > 0 {
			sticky = append(sticky, f)
		} else {
			free = append(free, f)
		}
	}
	return c.both(func(i int, s *side) error {
		add := func(f *compared, seen network.Seen) error {
			f.seen[i][f.words(seen)] = seen
			return seen.Broken
		}
		var batch []network.Attempt
		for range copies {
			for _, f := range free {
				batch = append(batch, f.Attempt)
			}
		}
		for n, seen := range s.session.tryAll(ctx, batch) {
			if err := add(free[n%len(free)], seen); err != nil {
				return err
			}
		}
		for _, f := range sticky {
			endpoint := network.Seen{}.Endpoint
			for range copies {
				seen := s.session.try(f.Attempt, s.session.patience.Patience)
				if err := add(f, seen); err != nil {
					return err
				}
				if endpoint.IsValid() && seen.Verdict == oracle.Deliver && seen.Endpoint != endpoint {
					f.seen[i][strays] = seen
				}
				endpoint = seen.Endpoint
			}
		}
		return ctx.Err()
	})
}
