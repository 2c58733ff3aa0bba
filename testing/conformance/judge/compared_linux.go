package judge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// compared is a flow and its results on both sides.
type compared struct {
	testbed.Expectation
	to    cluster.Destination
	of    string                     // the service's name
	seen  [2]map[string]network.Seen // one example per result, by its description
	tried int                        // number of tries on each side
}

// strays is the result of a client with affinity whose connections reach several endpoints.
const strays = "delivered to one endpoint and then to another"

// words describes a result. For affinity it leaves out the endpoint, which is chosen at random.
func (f *compared) words(s network.Seen) string {
	switch {
	case s.Verdict == oracle.Deliver && f.Out.AffinityTimeout > 0 && f.Check(s) == nil:
		return "delivered to an endpoint of the port"
	case s.Verdict == 0:
		return "something else: " + s.Detail
	case s.Accepted:
		return s.Observation.String() + " after the connection was accepted"
	}
	return s.Observation.String()
}

// alike reports whether both sides had the same set of results.
func (f *compared) alike() bool {
	return maps.EqualFunc(f.seen[0], f.seen[1], func(network.Seen, network.Seen) bool { return true })
}

// wrong returns a result of this side that the oracle does not expect, if there is one.
func (f *compared) wrong(side int) (s network.Seen, wrong bool) {
	for _, text := range slices.Sorted(maps.Keys(f.seen[side])) {
		if s := f.seen[side][text]; text == strays || f.Check(s) != nil {
			return s, true
		}
	}
	return s, false
}

// remarkable reports whether the results of both sides differ, or both are wrong.
func (f *compared) remarkable() bool {
	_, wrong := f.wrong(0)
	return wrong || !f.alike()
}

// certain is the number of tries after which every random result has been seen.
const certain = 20

// singleTries is the number of tries after which a single result is taken to be the only one.
const singleTries = 12

// forget resets the flow to untried.
func (f *compared) forget() { f.seen, f.tried = [2]map[string]network.Seen{{}, {}}, 0 }

// enough reports whether more tries would hardly change the comparison.
func (f *compared) enough() bool {
	all := maps.Clone(f.seen[0])
	maps.Copy(all, f.seen[1])
	leftToChance := len(f.seen[0]) > 1 || len(f.seen[1]) > 1
	return f.alike() || f.tried >= testbed.Attempts(len(all)) || !leftToChance && f.tried >= singleTries
}

// class summarizes a side's results, to group similar differences.
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
	known := slices.ContainsFunc(f.Out.Endpoints, func(d oracle.Destination) bool { return d.Endpoint == s.Endpoint })
	if !known && f.Check(s) != nil {
		text += " to an unexpected endpoint"
	}
	switch {
	case !f.delivered(0) || !f.delivered(1) || f.Out.AffinityTimeout > 0 && f.Check(s) == nil:
		return text // the source does not differ, or depends on the random endpoint
	case s.Source == f.Source:
		return text + " with the client's source"
	}
	return text + " with another source"
}

// delivered reports whether a side delivered the flow at least once.
func (f *compared) delivered(side int) bool {
	for _, s := range f.seen[side] {
		if s.Verdict == oracle.Deliver {
			return true
		}
	}
	return false
}

// kind returns a key that is equal for flows with the same results for the same reason.
func (f *compared) kind() string {
	rule := ""
	for _, reason := range f.Out.Reasons {
		rule = cmp.Or(reason.Rule, rule)
	}
	return fmt.Sprint(rule, "|", f.class(0), "|", f.class(1), "|", f.alike())
}

// title says how the two sides differ.
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

// differing returns the remarkable flows that are still remarkable when tried again later.
func (c *comparison) differing(ctx context.Context, flows []*compared) ([]*compared, error) {
	open, err := c.tryAll(ctx, flows, 4)
	pause := 50 * time.Millisecond
	settle := max(c.sides[0].figures.Settle(), c.sides[1].figures.Settle())
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

// tryAll tries flows until it is clear which are remarkable, and returns these. Where a drop is expected it waits only
// briefly, unless the flow looks remarkable: the answer may be late. copies is the initial number of tries of each.
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

// try makes connections for each flow on both sides. Connections of a client with affinity follow one another.
func (c *comparison) try(ctx context.Context, flows []*compared, copies int, thorough bool) error {
	var free, sticky []*compared
	for _, f := range flows {
		f.DropIsRight = !thorough && f.AllowsSilence()
		f.tried += copies
		if f.Out.AffinityTimeout > 0 {
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
		for n, seen := range s.testbed.TryAll(ctx, batch) {
			if err := add(free[n%len(free)], seen); err != nil {
				return err
			}
		}
		for _, f := range sticky {
			endpoint := network.Seen{}.Endpoint
			for range copies {
				seen := s.testbed.Try(f.Attempt, s.testbed.Timeouts.Timeouts)
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
