package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// The program's own source lists without streaming behind a tunnel that drops the end of streamed lists.
func TestItIsReadyBehindATunnelThatDropsTheEndOfLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := apiserver.New(kube.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).Build(),
			kube.Node("n1").InternalIP("192.0.2.1").Build())
		require.NoError(t, err)
		server.SetFaults(func(context.Context, apiserver.Request) apiserver.Fault {
			return apiserver.Fault{NoEndOfList: true}
		})
		o, err := parse([]string{"--listen", "unix:///x"})
		require.NoError(t, err)
		o.cluster.Config = func() (*rest.Config, error) { return server.Config(), nil }
		source, err := o.source(prom.NewRequests())
		require.NoError(t, err)
		registry := prometheus.NewRegistry()
		ctx, cancel := context.WithCancel(t.Context())
		b, err := brain.New(ctx, brain.Options{Source: source, Cluster: o.allNodes(), Metrics: registry})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		time.Sleep(20 * time.Second) // virtual
		require.Error(t, b.Ready(), "the lists have no end")
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.NoError(t, b.Ready())
		n, err := testutil.GatherAndCount(registry, "kubeproxy_remote_incomplete_lists_total")
		require.NoError(t, err)
		assert.Equal(t, 4, n, "resources")
		cancel()
		require.NoError(t, <-ended)
	})
}
