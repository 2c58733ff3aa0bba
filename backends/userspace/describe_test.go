package userspace_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestAServiceIsDescribedByItsListenersConnectionsAndFlows(t *testing.T) {
	l := newLaptop(t, userspace.Options{})
	describe := func(name string) string {
		text, err := l.b.DescribeService(t.Context(), model.ServiceName{Namespace: "default", Name: name})
		require.NoError(t, err)
		return text
	}
	endpoint := mirror(t)
	dns := echo(t, "")
	l.Set(web().Affinity(time.Hour).Build(), tcpEndpoint(endpoint), udpEndpoint(dns),
		fakemodel.Service("default/idle").ClusterIP("10.96.0.11").Port("http", 80).NoEndpoints().Build())
	assert.Empty(t, describe("web"), "nothing is applied yet")
	l.Sync()
	c := l.dial(t, "http")
	require.Equal(t, "hello", exchange(t, c, "hello"))
	client := l.udp(t)
	require.Equal(t, "hello", client.ask("hello"))

	assert.Equal(t, fmt.Sprintf(`default/web:dns/UDP, IPv4
    10.96.0.10:53/UDP: listens on %[1]v
    cluster set: %[2]s
    clients stay with their endpoints for 1h0m0s: 1 are remembered
    flow %[3]v -> %[1]v -> %[2]s
default/web:http/TCP, IPv4
    10.96.0.10:80/TCP: listens on %[4]v
    cluster set: %[5]s
    clients stay with their endpoints for 1h0m0s: 1 are remembered
    connections: 1
`, l.addr(t, "dns"), dns, client.LocalAddr(), l.addr(t, "http"), endpoint), describe("web"))
	assert.Equal(t, `default/idle:http/TCP, IPv4
    10.96.0.11:80/TCP: refuses connections, no endpoint
`, describe("idle"))
	assert.Empty(t, describe("unknown"))
}

func TestADescriptionSaysWhyAPortIsNotServed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	l := newLaptop(t, userspace.Options{Addresses: userspace.Existing{}})
	l.Set(fakemodel.Service("default/web").ClusterIP("127.0.0.1").Port("http", port).Build(),
		tcpEndpoint("127.0.0.1:1"))
	require.Error(t, l.TrySync())
	text, err := l.b.DescribeService(t.Context(), model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, err)
	assert.Contains(t, text, fmt.Sprintf("127.0.0.1:%d/TCP: not served: listen tcp", port))
}

func TestADescriptionHasIPv6EndpointsWhole(t *testing.T) {
	l := newLaptop(t, userspace.Options{Common: frontend.Common{Families: []model.Family{model.IPv6}}})
	l.Set(fakemodel.Service("default/web").ClusterIP("fd00:96::1").Port("http", 80).Build(),
		tcpEndpoint("[fd00::1]:8080"), tcpEndpoint("[fd00::2]:8080"))
	_ = l.TrySync() // it fails where ::1 is missing
	text, err := l.b.DescribeService(t.Context(), model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, err)
	assert.Contains(t, text, "cluster set: [fd00::1]:8080 [fd00::2]:8080\n")
}
