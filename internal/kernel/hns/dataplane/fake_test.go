package dataplane_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

var (
	vip  = dataplane.Key{Family: model.IPv4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: model.TCP}
	node = dataplane.Key{Family: model.IPv6, Port: 30080, Protocol: model.UDP}
)

// newFake returns a Fake with a network and the endpoints of two pods.
func newFake() (f *dataplane.Fake, pods []string) {
	f = dataplane.NewFake()
	f.SetNetwork(dataplane.Network{Name: "cbr0", Type: "L2Bridge"}, false)
	for _, ip := range []string{"10.244.1.5", "10.244.1.6"} {
		pods = append(pods, f.AddEndpoint("cbr0", dataplane.Endpoint{IPs: []netip.Addr{netip.MustParseAddr(ip)}}))
	}
	return f, pods
}

func TestKeysAreReadBack(t *testing.T) {
	for _, key := range []dataplane.Key{vip, node} {
		back, err := dataplane.ParseKey(key.Text())
		require.NoError(t, err)
		require.Equal(t, key, back)
	}
	for _, text := range []string{"", "IPv4 - 80", "IPv5 - 80 TCP", "IPv4 fd00::1 80 TCP", "IPv4 - 65536 TCP",
		"IPv4 - 80 ICMP"} {
		_, err := dataplane.ParseKey(text)
		require.ErrorContains(t, err, "invalid frontend", text)
	}
}

func TestTheFakeRefusesWhatHNSRefuses(t *testing.T) {
	f, pods := newFake()
	ctx := t.Context()
	lb := dataplane.LoadBalancer{Key: vip, TargetPort: 8080, Endpoints: pods}
	made, err := f.CreateLoadBalancer(ctx, lb)
	require.NoError(t, err)
	_, err = f.CreateLoadBalancer(ctx, lb)
	require.ErrorIs(t, err, dataplane.ErrAlreadyExists)
	_, err = f.CreateLoadBalancer(ctx, dataplane.LoadBalancer{Key: node})
	require.ErrorContains(t, err, "a reference is required")
	_, err = f.CreateLoadBalancer(ctx, dataplane.LoadBalancer{Key: node, Endpoints: []string{"none"}})
	require.ErrorIs(t, err, dataplane.ErrNotFound)
	err = f.UpdateLoadBalancer(ctx, dataplane.LoadBalancer{ID: "none", Endpoints: pods})
	require.ErrorIs(t, err, dataplane.ErrNotFound)
	require.NoError(t, f.DeleteLoadBalancer(ctx, made.ID))
	require.ErrorIs(t, f.DeleteLoadBalancer(ctx, made.ID), dataplane.ErrNotFound)
	_, err = f.CreateEndpoint(ctx, "none", dataplane.Endpoint{IPs: []netip.Addr{vip.Addr}})
	require.ErrorIs(t, err, dataplane.ErrNotFound)
	_, err = f.Network(ctx, "none")
	require.ErrorIs(t, err, dataplane.ErrNotFound)
}

func TestForward(t *testing.T) {
	f, pods := newFake()
	_, err := f.CreateLoadBalancer(t.Context(), dataplane.LoadBalancer{Key: vip, TargetPort: 8080, Endpoints: pods})
	require.NoError(t, err)
	nodePort := dataplane.Key{Family: model.IPv4, Port: 30080, Protocol: model.TCP}
	_, err = f.CreateLoadBalancer(t.Context(), dataplane.LoadBalancer{Key: nodePort, TargetPort: 8080, Endpoints: pods,
		Distribution: dataplane.BySource, Flags: dataplane.DSR})
	require.NoError(t, err)
	host := []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	forward := func(port uint16, to string) dataplane.Forwarded {
		return f.Forward(dataplane.Packet{Source: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), port),
			Destination: netip.MustParseAddrPort(to), Protocol: model.TCP}, host)
	}
	byConnection, bySource := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for port := range uint16(100) {
		byConnection[forward(port, "10.96.0.10:80").Endpoint] = true
		got := forward(port, "192.0.2.10:30080")
		require.True(t, got.SourceKept)
		bySource[got.Endpoint] = true
	}
	require.Equal(t, map[netip.AddrPort]bool{netip.MustParseAddrPort("10.244.1.5:8080"): true,
		netip.MustParseAddrPort("10.244.1.6:8080"): true}, byConnection)
	require.Len(t, bySource, 1)
	for _, to := range []string{"10.96.0.10:81", "192.0.2.11:30080", "10.96.0.11:80"} {
		require.Zero(t, forward(1, to), to)
	}
	f.RemoveEndpoint(netip.MustParseAddr("10.244.1.5"))
	f.RemoveEndpoint(netip.MustParseAddr("10.244.1.6"))
	require.True(t, forward(1, "10.96.0.10:80").Broken)
}
