package brain

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// A brain whose API server was restored from a backup, and therefore is silent, lists anew before its nodes would leave
// it, and follows the lower versions.
func TestABrainListsARestoredServerAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, err := apiserver.New(kube.Node("n1").Build(), kube.Node("goes").Build(), kube.Service("default/a").Build())
		require.NoError(t, err)
		api.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
			version, _ := strconv.ParseInt(r.Options.ResourceVersion, 10, 64)
			return apiserver.Fault{Silent: r.Verb == "watch" && version > api.Version()}
		})
		for range 1000 {
			api.Bookmark()
		}
		client, err := kubernetes.NewForConfig(api.Config())
		require.NoError(t, err)
		source, err := watch.NewClientset(client, watch.ClientsetOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		registry := prometheus.NewRegistry()
		s, err := New(ctx, Options{Source: source, Metrics: registry})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		minutes := func(n int) {
			for range n {
				time.Sleep(time.Minute) // virtual
				api.Bookmark()
				synctest.Wait()
				require.NoError(t, s.Ready())
			}
		}
		minutes(3)
		api.Restore()
		require.NoError(t, api.Delete(kube.Node("goes").Build()))
		minutes(10)
		s.mu.Lock()
		seen := s.source.seen
		assert.Contains(t, s.nodes, "n1")
		assert.NotContains(t, s.nodes, "goes")
		s.mu.Unlock()
		for _, kind := range []int{wire.Services, wire.EndpointSlices, wire.Nodes, wire.ServiceCIDRs} {
			assert.EqualValues(t, api.Version(), seen[kind])
		}
		assert.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_remote_silent_watch_relists_total Lists made because the API server was silent, by resource
# TYPE kubeproxy_remote_silent_watch_relists_total counter
kubeproxy_remote_silent_watch_relists_total{resource="endpointslices"} 1
kubeproxy_remote_silent_watch_relists_total{resource="nodes"} 1
kubeproxy_remote_silent_watch_relists_total{resource="servicecidrs"} 1
kubeproxy_remote_silent_watch_relists_total{resource="services"} 1
`), "kubeproxy_remote_silent_watch_relists_total"))
		cancel()
		require.NoError(t, <-ended)
	})
}
