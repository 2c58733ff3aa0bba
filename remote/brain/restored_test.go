package brain

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

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
		s, err := New(ctx, Options{Source: source})
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
		cancel()
		require.NoError(t, <-ended)
	})
}
