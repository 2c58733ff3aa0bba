package ipvs

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// sweepWaves are waves of changes: everything comes, changes, and goes in part.
func sweepWaves(t testing.TB) []func(*Backend) {
	external := func() *fm.ServiceBuilder {
		return fm.Service("default/external").ClusterIP("10.96.0.20", "fd00:96::20").ExternalIP("198.51.100.1").
			LoadBalancerIP("203.0.113.1").SourceRange("192.0.2.0/24").Port("http", 80).NodePort(30080).ExternalLocal().
			DetectsLocalPods()
	}
	endpoint := func(port, target string) *model.Endpoint { return fm.Endpoint(port, target).Local().Build() }
	return []func(*Backend){
		func(b *Backend) {
			backendtest.Set(t, b, backendtest.Node())
			backendtest.Set(t, b, web()...)
			backendtest.Set(t, b, external().Build(), endpoint("default/external:http/TCP", pod1.String()),
				endpoint("default/external:http/TCP", "[fd00:244:1::5]:8080"))
		},
		func(b *Backend) {
			b.DeleteEndpoint(endpoint("default/web:http/TCP", pod1.String()).Key())
			b.DeleteEndpoint(endpoint("default/web:udp/UDP", pod1.String()).Key())
			backendtest.Set(t, b, external().Affinity(time.Hour).ExternalIP("198.51.100.2").Build(),
				endpoint("default/external:http/TCP", "10.244.1.6:8080"))
		},
		func(b *Backend) {
			b.DeleteEndpoint(endpoint("default/web:http/TCP", pod2.String()).Key())
			b.DeleteEndpoint(endpoint("default/web:udp/UDP", pod2.String()).Key())
			b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
		},
	}
}

func TestAFailureOfAnyCallLosesNothing(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{"of a service port": syscall.ENOMEM, "of all": syscall.EPERM} {
		t.Run(name, func(t *testing.T) { testAFailureOfAnyCall(t, errno) })
	}
}

// Each call that changes something fails once. Then the next Sync of the same process, a retry, or a new process leads
// to what no failure leads to.
func testAFailureOfAnyCall(t *testing.T, errno syscall.Errno) {
	t.Helper()
	result := func(k *kernel, b *Backend) string {
		for f := range b.families {
			_ = b.tryToDrain(t, f) // it may be what fails: it is done again
			b.drain(t, f)
		}
		return k.ipvs.Dump() + k.table(model.IPv4) + k.table(model.IPv6)
	}
	others := nodesAt("198.51.100.2").option
	perfect := newKernel(t)
	b := perfect.start(t, others)
	var want []string
	for _, wave := range sweepWaves(t) {
		wave(b)
		require.NoError(t, b.Sync(t.Context()))
		want = append(want, result(perfect, b))
	}
	const nextSync, retry, restart = "the next Sync", "a retry", "a restart"
	for _, repair := range []string{nextSync, retry, restart} {
		for failing, failed := 1, true; failed; failing++ {
			failed = false
			k := newKernel(t)
			b := k.start(t, others)
			calls := 0
			fail := func(string) error {
				if calls++; calls == failing {
					failed = true
					return errno
				}
				return nil
			}
			k.ipvs.SetFail(fail)
			k.nft.FailApply = func(*nft.Transaction) error { return fail("") }
			for i, wave := range sweepWaves(t) {
				wave(b)
				err := b.Sync(t.Context())
				if err != nil && repair == restart {
					require.NoError(t, b.Close())
					b = k.start(t, others)
					for _, wave := range sweepWaves(t)[:i+1] {
						wave(b)
					}
					err = b.Sync(t.Context())
				} else if err != nil {
					if repair == retry || sink.FailedFamilies(err) == 0 { // a retry is for service ports, too
						b.ResyncFailed()
					}
					err = b.Sync(t.Context())
				}
				require.NoError(t, err, "call %d, wave %d", failing, i)
				require.Equal(t, want[i], result(k, b), fmt.Sprintf("call %d, wave %d, %s", failing, i, repair))
			}
			require.NoError(t, b.Close())
		}
	}
}
