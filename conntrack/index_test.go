package conntrack

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Whatever changes, and however many Syncs fail in between, the index has what was described at the last Sync that
// succeeded, and nothing is remembered beyond it.
func TestTheIndexHasWhatASyncApplied(t *testing.T) {
	for seed := range int64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := model.Families()[seed%2]
			random := rand.New(rand.NewSource(seed))
			next := &sink.Recorder{}
			r := Wrap(t.Context(), next, Options{Table: &fakeTable{}, Families: []model.Family{f}, Addresses: nodePorts})
			defer r.Wait()
			var before []*sink.ServiceEntry
			for step := range 30 {
				after := randomServices(t, random, f, before)
				describe(r, before, after)
				before = after
				if random.Intn(3) == 0 {
					next.FailNext(errors.New("on purpose"))
					require.Error(t, r.Sync(t.Context()))
					continue
				}
				require.NoError(t, r.Sync(t.Context()))
				want := newIndex()
				for _, e := range after {
					want.set(e.Service.Name, udpServiceOf(e.Service, f), servingIn(e, f), &pending{})
				}
				require.Len(t, r.families[0].index.ports, len(want.ports), "step %d", step)
				for name, p := range want.ports {
					got := r.families[0].index.ports[name]
					require.True(t, p.sameNumbers(got) && p.service.sameDestinations(got.service), "step %d: %v", step, name)
					require.Len(t, got.serving, len(p.serving), "step %d: %v", step, name)
					for target := range p.serving {
						require.Contains(t, got.serving, target, "step %d: %v", step, name)
					}
				}
				got := r.families[0].index
				requireSameSizes(t, want.servedBy, got.servedBy)
				requireSameSizes(t, want.addresses, got.addresses)
				requireSameSizes(t, want.numbers, got.numbers)
				requireSameSizes(t, want.nodePorts, got.nodePorts)
				require.Empty(t, r.families[0].services)
				require.Empty(t, r.families[0].endpoints)
			}
		})
	}
}

func requireSameSizes[K comparable, E any](t *testing.T, want, got map[K]set[E]) {
	t.Helper()
	require.Len(t, got, len(want))
	for key, s := range want {
		require.Equal(t, s.len(), got[key].len(), "%v", key)
	}
}
