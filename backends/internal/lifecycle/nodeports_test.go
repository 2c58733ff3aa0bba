package lifecycle

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A Sync is asked for when it would decide otherwise (S59): not before the backend knows the address, and not when the
// address was there.
func TestAnAddressThatTheHostGainsAsksForASync(t *testing.T) {
	var log []string
	var host nodeaddr.Fake
	eth0 := nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}
	host.Set(eth0)
	var told []string
	s := backend(&log)
	s.Common = frontend.Common{Host: &host, Families: []model.Family{model.IPv4},
		OnProblem: func(_ context.Context, p frontend.Problem) { told = append(told, p.Port.String()+" "+p.Message) }}
	r, err := s.Start(t.Context())
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.Close()) }()
	requests := make(chan struct{}, 10)
	r.OnAddresses(func() { requests <- struct{}{} })

	r.SetService(fakemodel.Service("prod/web").UID("1").Port("http", 80).NodePort(30080).Build())
	require.NoError(t, r.Sync(t.Context()))
	r.SetService(fakemodel.Service("evil/x").UID("2").Port("http", 30080).ExternalIP("192.0.2.2").Build())
	require.NoError(t, r.Sync(t.Context()))
	assert.Empty(t, told)
	assert.Empty(t, requests)

	host.Set(eth0, nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.2"), Interface: "eth0"})
	<-requests
	require.NoError(t, r.Sync(t.Context()))
	require.Len(t, told, 1)
	assert.Contains(t, told[0], "192.0.2.2:30080/TCP belongs to")
}
