package testbed

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// These outcomes are acceptable instead of a refusal.
func TestRefusalsOfAllKinds(t *testing.T) {
	o, err := oracle.New(oracle.State{Node: &model.Node{Name: network.TheNode}}, oracle.Config{})
	require.NoError(t, err)
	e := Expectation{Out: oracle.Outcome{Verdict: oracle.Reject}, oracle: o, waived: &waivers{}}
	e.Protocol = model.TCP
	saw := func(v oracle.Verdict) network.Seen { return network.Seen{Observation: oracle.Observation{Verdict: v}} }
	late := saw(oracle.Reject)
	late.Accepted = true
	for _, tc := range []struct {
		name  string
		seen  network.Seen
		right map[backend.Feature]bool // for a backend that lacks it; "": for every backend
	}{
		{"a refusal", saw(oracle.Reject), map[backend.Feature]bool{"": true, backend.Refusal: true,
			backend.SourcePreservation: true}},
		{"a reset of an accepted connection", late, map[backend.Feature]bool{backend.Refusal: true}},
		{"silence", saw(oracle.Drop), map[backend.Feature]bool{backend.Refusal: true}},
		{"an answer", saw(oracle.Deliver), nil},
		{"something else", saw(0), nil},
	} {
		for _, lacks := range []backend.Feature{"", backend.Refusal, backend.SourcePreservation} {
			e.factory = &backend.Factory{Lacks: []backend.Feature{lacks}}
			if err := e.Check(tc.seen); tc.right[lacks] {
				assert.NoError(t, err, "%s, without %v", tc.name, lacks)
			} else {
				assert.Error(t, err, "%s, without %v", tc.name, lacks)
			}
		}
	}
}

func TestAttemptsReachEveryEndpoint(t *testing.T) {
	assert.Equal(t, 1, Attempts(0))
	assert.Equal(t, 1, Attempts(1))
	for n := 2; n < 20; n++ {
		missed := float64(n) * math.Pow(1-1/float64(n), float64(Attempts(n)))
		assert.Less(t, missed, 1.0001e-12, "with %d endpoints", n)
		assert.Greater(t, missed, 1e-13, "with %d endpoints, no more attempts than it takes", n)
	}
}
