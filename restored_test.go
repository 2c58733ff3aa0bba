package kubeproxy_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Objects of a restored API server have different resourceVersions, which alone does not cause a Sync. Real differences
// are applied.
func TestAListAfterASilenceSyncsOnlyWhatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, err := apiserver.New()
		require.NoError(t, err)
		for i := range 100 {
			name := fmt.Sprintf("default/web-%d", i)
			slice := kube.EndpointSlice(name).Port("http", 8080)
			for e := range 10 {
				slice.Endpoint(fmt.Sprintf("10.244.%d.%d", i, e))
			}
			require.NoError(t, api.Set(slice.Build(),
				kube.Service(name).ClusterIP(fmt.Sprintf("10.96.1.%d", i)).Port("http", 80).Build()))
		}
		for range 1000 {
			api.Bookmark()
		}
		api.SetFaults(func(_ context.Context, r apiserver.Request) apiserver.Fault {
			version, _ := strconv.ParseInt(r.Options.ResourceVersion, 10, 64)
			return apiserver.Fault{Silent: r.Verb == "watch" && version > api.Version()}
		})
		client, err := kubernetes.NewForConfig(api.Config())
		require.NoError(t, err)
		source, err := watch.NewClientset(client, watch.ClientsetOptions{})
		require.NoError(t, err)
		recorder, registry := &sink.Recorder{}, prometheus.NewRegistry()
		relists := func() int {
			n, err := testutil.GatherAndCount(registry, "kubeproxy_silent_watch_relists_total")
			require.NoError(t, err)
			return n
		}
		stop := start(t, kubeproxy.Options{Feed: local(source), Sink: recorder, Metrics: registry})
		time.Sleep(time.Minute) // virtual
		require.NotEmpty(t, recorder.TakeWaves())
		minutes := func(n int) {
			for range n {
				time.Sleep(time.Minute) // virtual
				api.Bookmark()
			}
			synctest.Wait()
		}

		assert.Zero(t, relists())
		api.Restore()
		listed := len(api.Requests())
		minutes(10)
		lists := 0
		for _, r := range api.Requests()[listed:] {
			if r.StreamsList() {
				lists++
			}
		}
		assert.GreaterOrEqual(t, lists, 2, "Services and EndpointSlices")
		assert.Equal(t, lists, relists(), "once for each resource")
		assert.Empty(t, recorder.TakeWaves())

		for range 1000 {
			api.Bookmark()
		}
		minutes(1)
		api.Restore()
		require.NoError(t, api.Delete(kube.Service("default/web-7").Build()))
		minutes(5)
		waves := recorder.TakeWaves()
		require.Len(t, waves, 1)
		lines := waves[0].Lines()
		assert.Equal(t, []string{"DeleteService default/web-7", "Sync"}, lines[len(lines)-2:])
		assert.Len(t, lines, 12, "its endpoints as well, and nothing else")
		require.NoError(t, stop())
	})
}
