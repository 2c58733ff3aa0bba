package hns

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// sweepWaves are waves of changes: everything comes, changes, and goes in part.
func sweepWaves(t testing.TB) []func(*Backend) {
	return []func(*Backend){
		func(b *Backend) {
			backendtest.Set(t, b, web()...)
			backendtest.Set(t, b, api()...)
		},
		func(b *Backend) {
			b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
			backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.2.6:8080").Build(),
				fm.Endpoint("default/api:http/TCP", "10.244.2.6:9090").Build(),
				fm.Service("default/api").ClusterIP("10.96.0.11").ExternalIP("198.51.100.1").Port("http", 81).Build())
		},
		func(b *Backend) {
			b.DeleteEndpoint(endpointKey("10.244.1.5:8080"))
			b.DeleteEndpoint(endpointKey("10.244.2.6:8080"))
			b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
		},
	}
}

// Each call of HNS, reading ones included, fails once. After the next Sync and check, of the same process or of a new
// one, HNS has what it would have had without the failure.
func TestAFailureOfAnyCallLosesNothing(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay,
		"HNS normalises": func(t testing.TB) *machine { return newOverlay(t).normalise(false) },
		"addresses are not unique": func(t testing.TB) *machine {
			m := newOverlay(t)
			m.hns.UniqueAddresses = false
			return m
		}} {
		t.Run(name, func(t *testing.T) {
			perfect := newMachine(t)
			b := perfect.start(t, overlay)
			var want []string
			for _, wave := range sweepWaves(t) {
				wave(b)
				require.NoError(t, b.Sync(t.Context()))
				want = append(want, perfect.hns.Dump())
			}
			for _, restart := range []bool{false, true} {
				for failing, failed := 1, true; failed; failing++ {
					failed = false
					m := newMachine(t)
					calls := 0
					fail := func(string) error {
						if calls++; calls == failing {
							failed = true
							return errors.New("the service is unavailable")
						}
						return nil
					}
					b := m.start(t, overlay)
					m.hns.SetFail(fail)
					m.hns.SetFailRead(fail)
					for i, wave := range sweepWaves(t) {
						wave(b)
						err := b.Sync(t.Context())
						if failed && restart {
							require.NoError(t, b.Close())
							b = m.start(t, overlay)
							for _, wave := range sweepWaves(t)[:i+1] {
								wave(b)
							}
							err = b.Sync(t.Context())
						} else if err != nil {
							b.ResyncFailed()
							err = b.Sync(t.Context())
						}
						for _, f := range model.Families() {
							if _, err := b.families[f].check(t.Context(), nil); err != nil { // it may be what fails
								_, err = b.families[f].check(t.Context(), nil)
								require.NoError(t, err)
							}
						}
						where := fmt.Sprintf("call %d, wave %d, restart %v", failing, i, restart)
						require.NoError(t, err, where)
						require.Equal(t, want[i], m.hns.Dump(), where)
					}
					require.NoError(t, b.Close())
				}
			}
		})
	}
}
