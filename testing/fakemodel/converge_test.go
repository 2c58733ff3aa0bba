package fakemodel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// After failures and restarts a sink has the same state as a new one that gets the final state at once.
func TestClusterObjectsConverge(t *testing.T) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 0))
		faults := NewFaults(seed, 0.3)
		d := NewDriver(t, Options{NewSink: func() sink.Sink { return faulty(sink.Tee(), faults) }})
		alive := map[string][]any{}
		silent := 0
		for i := range 400 {
			name := "web-" + itoa(random.IntN(5))
			switch random.IntN(5) {
			case 0:
				d.Delete(alive[name]...)
				delete(alive, name)
			case 1:
				d.Set(alive[name]...) // again
			default:
				alive[name] = randomObjects(random, name)
				d.Set(alive[name]...)
			}
			if random.IntN(2) == 0 { // some waves have several changes
				continue
			}
			syncUntilApplied(t, d, 100)
			if len(d.Transcript()) == 0 {
				silent++
			}
			if i%50 == 0 {
				d.Restart()
			}
		}

		fresh := NewDriver(t, Options{})
		for _, objects := range alive {
			fresh.Set(objects...)
		}
		fresh.Sync()
		assert.NotEmpty(t, fresh.State().Services)
		for _, event := range []func(){func() {}, d.Restart} {
			event()
			syncUntilApplied(t, d, 100)
			require.Equal(t, fresh.State().String(), d.State().String(), "seed %d", seed)
		}
		assert.Positive(t, silent, "some changes mean nothing to this node")
		assert.Positive(t, faults.injected)
	}
}

// randomObjects returns a service with a slice of endpoints here and elsewhere, in all phases.
func randomObjects(random *rand.Rand, name string) []any {
	service, slice := kube.Service(name).Port("http", 80), kube.EndpointSlice(name).Port("http", 8080)
	if random.IntN(2) == 0 {
		service.NodePort(30080).ExternalLocal()
	}
	for i := range random.IntN(4) {
		slice.Endpoint("10.244.1." + itoa(i+1)).OnNode("n" + itoa(1+i%2))
		switch random.IntN(4) {
		case 0:
			slice.Terminating()
		case 1:
			slice.NotReady()
		}
	}
	return []any{service.Build(), slice.Build()}
}
