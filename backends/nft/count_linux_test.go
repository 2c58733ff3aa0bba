package nft_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The kernel counts each flow once, whatever the number of its packets; also those that are refused.
func TestTheKernelCountsConnections(t *testing.T) {
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, nft.Options{CountConnections: true}, true)
	web := flows.Service()
	empty := *web
	empty.Name.Name = "empty"
	empty.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.255.2")}
	values := []any{backendtest.Node(), web, &empty}
	for i := range 3 {
		ep := *flows.Endpoint(1 + i)
		ep.Target = netip.AddrPortFrom(ep.Target.Addr(), 9090)
		answerWithName(t, ep.Target.String())
		values = append(values, &ep)
	}
	r.Set(values...)
	r.Sync()
	assert.Equal(t, map[model.ServiceName]sink.Traffic{web.Name: {}, empty.Name: {}}, r.traffic())
	for client := range 12 {
		askedBy(t, client, 1, "10.96.255.1:80")
	}
	conn, err := net.Dial("udp4", "10.96.255.1:80")
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for range 5 { // packets of one flow
		_, err = fmt.Fprint(conn, "?")
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 64))
		require.NoError(t, err)
	}
	refused, err := net.Dial("udp4", "10.96.255.2:80")
	require.NoError(t, err)
	defer refused.Close()
	_, err = fmt.Fprint(refused, "?")
	require.ErrorIs(t, err, syscall.EPERM)

	want := map[model.ServiceName]sink.Traffic{web.Name: {Connections: 13}, empty.Name: {Connections: 1}}
	assert.Equal(t, want, r.traffic())
	r.Restart()
	r.Sync()
	assert.Equal(t, want, r.traffic(), "another process finds what has been counted")
	askedBy(t, 1, 2, "10.96.255.1:80")
	assert.EqualValues(t, 14, r.traffic()[web.Name].Connections)
}
