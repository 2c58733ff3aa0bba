package oracle

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// obedient is a decision function that does what an oracle says.
func obedient(t *testing.T, o *Oracle) func(Flow) Observation {
	return func(f Flow) Observation {
		want, err := o.Expect(f)
		require.NoError(t, err)
		seen := Observation{Verdict: want.Verdict}
		if want.Verdict == Deliver {
			d := want.Endpoints[len(want.Endpoints)-1]
			seen.Endpoint, seen.Source = d.Endpoint, f.Source
			if d.SourceNAT {
				for _, a := range o.config.HostAddresses {
					if model.FamilyOf(a) == f.Family() {
						seen.Source = a
					}
				}
			}
		}
		return seen
	}
}

func TestCompare(t *testing.T) {
	f := newFixture()
	f.policy.External = model.TrafficPolicyLocal
	ranges("192.0.2.0/24")(f)
	o := f.oracle(t)
	right := obedient(t, o)
	compare := func(decide func(Flow) Observation) error {
		return Compare(f.state(), o.config, 1, 2000, decide)
	}
	require.NoError(t, compare(right))

	for _, tc := range []struct {
		name   string
		decide func(Flow) Observation
		want   string
	}{
		{"drops nothing", func(f Flow) Observation {
			s := right(f)
			if s.Verdict == Drop {
				s.Verdict = Reject
			}
			return s
		}, "is not in the source ranges of the service (S26)"},
		{"never masquerades", func(f Flow) Observation {
			s := right(f)
			if s.Verdict == Deliver {
				s.Source = f.Source
			}
			return s
		}, "source NAT"},
		{"takes pods for strangers", func(f Flow) Observation {
			if f.From == LocalPod {
				f.From, f.Source = External, addr(client)
				if f.Family() == model.IPv6 {
					f.Source = addr(client6)
				}
			}
			return right(f)
		}, "from a pod of this node"},
		{"forgets node ports", func(f Flow) Observation {
			if f.Destination.Port() == 30080 {
				return Observation{Verdict: NotOurs}
			}
			return right(f)
		}, "node port"},
		{"refuses what is not its own", func(f Flow) Observation {
			s := right(f)
			if s.Verdict == NotOurs {
				s.Verdict = Reject
			}
			return s
		}, "not ours"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := compare(tc.decide)
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, err.Error(), compare(tc.decide).Error(), "the same seed makes the same flows")
		})
	}
	require.ErrorContains(t, Compare(State{Node: &f.node}, Config{}, 1, 1, right), "nothing that a flow could be for")
	require.ErrorContains(t, Compare(State{}, Config{}, 1, 1, right), "no node")
}
