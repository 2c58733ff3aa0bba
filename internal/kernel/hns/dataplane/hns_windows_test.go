package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/Microsoft/hnslib/hcn"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// newNetwork makes a network in the stand-in for HNS that testing/wine builds. It must not run on a real Windows,
// because it would change the machine's networks.
func newNetwork(t *testing.T, name string, policies ...hcn.NetworkPolicy) (HNS, Network) {
	need.That(t, os.Getenv("KPL_FAKE_HNS") == "1", "the stand-in for HNS of testing/wine (KPL_FAKE_HNS=1)")
	created, err := (&hcn.HostComputeNetwork{Name: name, Type: hcn.Overlay, Policies: policies,
		SchemaVersion: hcn.SchemaVersion{Major: 2}}).Create()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, created.Delete()) })
	var h HNS
	n, err := h.Network(t.Context(), name)
	require.NoError(t, err)
	return h, n
}

func TestHNSHasTheFeaturesOfItsVersion(t *testing.T) {
	h, _ := newNetwork(t, "features")
	f, err := h.Features(t.Context())
	require.NoError(t, err)
	require.Equal(t, NewFake().Supported, f)
}

func TestHNSNetworks(t *testing.T) {
	h, n := newNetwork(t, "overlay", hcn.NetworkPolicy{Type: hcn.RemoteSubnetRoute, Settings: []byte(
		`{"DestinationPrefix":"10.244.2.0/24","IsolationId":4096,"ProviderAddress":"192.0.2.20",` +
			`"DistributedRouterMacAddress":"02-00-00-00-00-01"}`)})
	require.NotEmpty(t, n.ID)
	require.Equal(t, Network{ID: n.ID, Name: "overlay", Type: "Overlay", RemoteSubnets: []RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("192.0.2.20")}}}, n)
	_, err := h.Network(t.Context(), "none")
	require.ErrorIs(t, err, ErrNotFound)
}

// A malformed subnet, which somebody may have written by hand, does not keep the others from being served.
func TestMalformedRemoteSubnetsAreLeftOut(t *testing.T) {
	subnet := func(settings string) hcn.NetworkPolicy {
		return hcn.NetworkPolicy{Type: hcn.RemoteSubnetRoute, Settings: []byte(settings)}
	}
	_, n := newNetwork(t, "malformed", subnet(`{"DestinationPrefix":"hello","ProviderAddress":"192.0.2.20"}`),
		subnet(`{"DestinationPrefix":"10.244.2.0/24","ProviderAddress":"192.0.2.20"}`),
		subnet(`{"DestinationPrefix":"10.244.3.0/24","ProviderAddress":""}`),
		subnet(`{"DestinationPrefix":7,"ProviderAddress":"192.0.2.20"}`))
	require.Len(t, n.Malformed, 3)
	require.Equal(t, []RemoteSubnet{{Prefix: netip.MustParsePrefix("10.244.2.0/24"),
		Provider: netip.MustParseAddr("192.0.2.20")}}, n.RemoteSubnets)
}

func TestHNSEndpoints(t *testing.T) {
	h, n := newNetwork(t, "endpoints")
	_, other := newNetwork(t, "others")
	want := Endpoint{Name: "kube-proxy-lib 10.244.2.5", IPs: []netip.Addr{netip.MustParseAddr("10.244.2.5")},
		MAC: "02-11-0a-f4-02-05", Remote: true, Provider: netip.MustParseAddr("192.0.2.20")}
	made, err := h.CreateEndpoint(t.Context(), n.ID, want)
	require.NoError(t, err)
	want.ID = made.ID
	require.Equal(t, want, made)
	elsewhere, err := h.CreateEndpoint(t.Context(), other.ID, Endpoint{Name: "pod", IPs: want.IPs})
	require.NoError(t, err)

	list, err := h.Endpoints(t.Context(), n.ID)
	require.NoError(t, err)
	require.Equal(t, []Endpoint{want}, list)
	got, err := h.EndpointByName(t.Context(), "pod")
	require.NoError(t, err)
	require.Equal(t, Endpoint{ID: elsewhere.ID, Name: "pod", IPs: want.IPs}, got)
	_, err = h.EndpointByName(t.Context(), "none")
	require.ErrorIs(t, err, ErrNotFound)

	require.NoError(t, h.DeleteEndpoint(t.Context(), want.ID))
	require.NoError(t, h.DeleteEndpoint(t.Context(), elsewhere.ID))
	require.ErrorIs(t, h.DeleteEndpoint(t.Context(), want.ID), ErrNotFound)
	_, err = h.CreateEndpoint(t.Context(), "00000000-0000-0000-0000-000000000001", want)
	require.ErrorIs(t, err, ErrNotFound, "there is no such network")
}

func TestHNSLoadBalancers(t *testing.T) {
	h, n := newNetwork(t, "balancers")
	var pods []string
	for _, ip := range []string{"10.244.1.5", "10.244.1.6"} {
		pod, err := h.CreateEndpoint(t.Context(), n.ID, Endpoint{IPs: []netip.Addr{netip.MustParseAddr(ip)}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.DeleteEndpoint(context.Background(), pod.ID)) })
		pods = append(pods, pod.ID)
	}
	ctx := t.Context()
	for _, lb := range []LoadBalancer{
		{Key: Key{Family: model.IPv4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: model.TCP},
			TargetPort: 8080, Endpoints: pods[:1], SourceVIP: netip.MustParseAddr("10.244.1.2"),
			Distribution: BySource},
		{Key: Key{Family: model.IPv6, Addr: netip.MustParseAddr("fd00:96::10"), Port: 53, Protocol: model.UDP},
			TargetPort: 5353, Endpoints: pods[:1], Flags: DSR | IPv6},
		{Key: Key{Family: model.IPv4, Port: 30080, Protocol: model.TCP}, TargetPort: 8080, Endpoints: pods[:1],
			Flags: DSR, PortFlags: LocalRoutedVIP | UseMux | PreserveDIP | VIPExternalIP},
	} {
		t.Run(lb.Key.String(), func(t *testing.T) {
			made, err := h.CreateLoadBalancer(ctx, lb)
			require.NoError(t, err)
			lb.ID = made.ID
			require.Equal(t, lb, made)
			list, err := h.LoadBalancers(ctx)
			require.NoError(t, err)
			require.Equal(t, []LoadBalancer{lb}, list)
			_, err = h.CreateLoadBalancer(ctx, lb)
			require.ErrorIs(t, err, ErrAlreadyExists)
			require.ErrorContains(t, err, "The specified port already exists", "HNS' own words are kept")

			lb.Endpoints = pods
			require.NoError(t, h.UpdateLoadBalancer(ctx, lb))
			list, err = h.LoadBalancers(ctx)
			require.NoError(t, err)
			require.Equal(t, []LoadBalancer{lb}, list)
			gone := lb
			gone.Endpoints = []string{"00000000-0000-0000-0000-000000000001"}
			require.ErrorIs(t, h.UpdateLoadBalancer(ctx, gone), ErrNotFound)
			t.Setenv("HNS_NO_MODIFY", "1")
			require.ErrorIs(t, h.UpdateLoadBalancer(ctx, lb), ErrNotSupported)

			require.NoError(t, h.DeleteLoadBalancer(ctx, lb.ID))
			require.ErrorIs(t, h.DeleteLoadBalancer(ctx, lb.ID), ErrNotFound)
			require.ErrorIs(t, h.UpdateLoadBalancer(ctx, lb), ErrNotFound)
			_, err = h.CreateLoadBalancer(ctx, gone)
			require.ErrorIs(t, err, ErrNotFound)
		})
	}
}

func TestLoadBalancersWithMoreThanOneFrontendAreForeign(t *testing.T) {
	h, n := newNetwork(t, "foreign")
	pod, err := h.CreateEndpoint(t.Context(), n.ID, Endpoint{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.NoError(t, err)
	mapping := hcn.LoadBalancerPortMapping{Protocol: 6, InternalPort: 80, ExternalPort: 80}
	lb, err := (&hcn.HostComputeLoadBalancer{HostComputeEndpoints: []string{pod.ID},
		FrontendVIPs: []string{"10.0.0.1", "10.0.0.2"}, PortMappings: []hcn.LoadBalancerPortMapping{mapping}}).Create()
	require.NoError(t, err)
	list, err := h.LoadBalancers(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, list[0].Foreign)
	require.NoError(t, lb.Delete())
	require.NoError(t, h.DeleteEndpoint(t.Context(), pod.ID))
}

func TestErrorsOfHNSAreTold(t *testing.T) {
	h, n := newNetwork(t, "errors")
	ctx := t.Context()
	pod, err := h.CreateEndpoint(ctx, n.ID, Endpoint{IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.NoError(t, err)
	id := pod.ID
	t.Cleanup(func() { require.NoError(t, h.DeleteEndpoint(context.Background(), id)) })
	lb := LoadBalancer{Key: Key{Family: model.IPv4, Port: 30080, Protocol: model.TCP}, Endpoints: []string{id}}
	for code, want := range map[string]error{
		"0x800706b5": ErrNotRunning, "0x800706ba": ErrNotRunning, "0x803b0001": ErrNetworkNotFound,
		"0x803b001e": ErrInvalidAddress, "0x80004001": ErrNotSupported, "0x800700b7": ErrAlreadyExists,
	} {
		t.Run(code, func(t *testing.T) {
			t.Setenv("HNS_ERROR", code)
			_, err := h.CreateLoadBalancer(ctx, lb)
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, h.DeleteLoadBalancer(ctx, id), want)
			_, err = h.Network(ctx, "errors")
			require.ErrorIs(t, err, want)
			_, err = h.LoadBalancers(ctx)
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrNotFound, "it is about one of them")
			require.Equal(t, errors.Is(want, ErrNotRunning), errors.Is(err, ErrNotRunning))
		})
	}
}

func TestHNSMakesNoCallForAContextThatHasEnded(t *testing.T) {
	h := HNS{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Network(ctx, "none")
	require.ErrorIs(t, err, ctx.Err())
	require.ErrorIs(t, h.DeleteLoadBalancer(ctx, "none"), ctx.Err())
}
