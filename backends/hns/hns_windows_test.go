package hns

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/Microsoft/hnslib/hcn"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"

	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The whole backend with the real calls, in the stand-in for HNS that testing/wine builds.
func TestOnTheCallsOfWindows(t *testing.T) {
	need.That(t, os.Getenv("KPL_FAKE_HNS") == "1", "the stand-in for HNS of testing/wine (KPL_FAKE_HNS=1)")
	created, err := (&hcn.HostComputeNetwork{Name: network, Type: hcn.L2Bridge}).Create()
	require.NoError(t, err)
	calls := dp.HNS{}
	pod, err := calls.CreateEndpoint(t.Context(), created.Id,
		dp.Endpoint{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.NoError(t, err)
	start := func() *Backend {
		b, err := New(context.Background(),
			Options{Network: network, checkInterval: -1, Common: frontend.Common{Families: []model.Family{model.IPv4}},
				RecordFile: filepath.Join(t.TempDir(), "frontends")})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	one := func() dp.LoadBalancer {
		t.Helper()
		list, err := calls.LoadBalancers(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0]
	}
	b := start()
	put(t, b, web()...)
	first := one()
	require.Len(t, first.Endpoints, 2)
	require.Contains(t, first.Endpoints, pod.ID)

	b = start()
	put(t, b, web()...)
	require.Equal(t, first, one(), "a restart")

	put(t, b, fm.Endpoint(webPort, "10.244.2.6:8080").Build())
	require.Equal(t, first.ID, one().ID, "it is changed in place")
	require.Len(t, one().Endpoints, 3)

	require.NoError(t, calls.DeleteLoadBalancer(t.Context(), first.ID))
	require.True(t, b.repair(t))
	require.Len(t, one().Endpoints, 3)

	require.NoError(t, b.CleanUp(t.Context()))
	list, err := calls.LoadBalancers(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	endpoints, err := calls.Endpoints(t.Context(), created.Id)
	require.NoError(t, err)
	require.Len(t, endpoints, 1)
	require.Equal(t, pod.ID, endpoints[0].ID, "the pod's stays")
	require.NoError(t, created.Delete())
}
