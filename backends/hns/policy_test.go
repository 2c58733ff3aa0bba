package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

const (
	pod5 = "10.244.1.5,fd00:244:1::5"
	pod6 = "10.244.1.6,fd00:244:1::6"
)

// external is a service with every kind of address.
func external() *fm.ServiceBuilder {
	return fm.Service("default/web").DetectsLocalPods().ClusterIP("10.96.0.10").ExternalIP("198.51.100.1").
		LoadBalancerIP("203.0.113.1").Port("http", 80).NodePort(30080)
}

func TestLoadBalancers(t *testing.T) {
	local := fm.Endpoint(webPort, "10.244.1.5:8080").Local().Build()
	remote := fm.Endpoint(webPort, "10.244.2.5:8080").Build()
	root := func(o *Options) { o.RootEndpoint = "cbr0_ep" }
	for _, tt := range []struct {
		name   string
		values []any
		change func(*Options)
		old    func(*dp.Features)
		want   string
	}{
		{name: "policy Cluster (S54)", values: []any{external().Build(), local, remote}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (VIPExternalIP)
`},
		{name: "external policy Local: DSR to local endpoints (S53)",
			values: []any{external().ExternalLocal().Build(), local, remote}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + ` (DSR, LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + ` (DSR, VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + ` (DSR, VIPExternalIP)
`},
		{name: "external policy Local without a version that has DSR", old: func(f *dp.Features) { f.DSR = false },
			values: []any{external().ExternalLocal().Build(), local, remote}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + ` (LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + ` (VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + ` (VIPExternalIP)
`},
		{name: "external policy Local without a local endpoint has none outside",
			values: []any{external().ExternalLocal().Build(), remote}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of 10.244.2.5
`},
		{name: "internal policy Local", values: []any{external().InternalLocal().Build(), local, remote}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (VIPExternalIP)
`},
		{name: "DSR of cluster IPs is an option", change: func(o *Options) { o.DSR = true },
			values: []any{fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), local}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + ` (DSR)
`},
		{name: "preserve-destination (S55)",
			values: []any{external().Annotation("preserve-destination", "true").Build(), local, remote}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + ` (LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5 (VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + ` (DSR, UseMux, PreserveDIP, VIPExternalIP)
`},
		{name: "health checks at the VIP go to the node (S55)", change: root,
			values: []any{external().ExternalLocal().HealthCheck(32100, 1, 0).Build(), local}, want: `
load balancer IPv4 node port 30080/TCP -> 8080 of ` + pod5 + ` (DSR, LocalRoutedVIP, VIPExternalIP)
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
load balancer 198.51.100.1:80/TCP -> 8080 of ` + pod5 + ` (DSR, VIPExternalIP)
load balancer 203.0.113.1:80/TCP -> 8080 of ` + pod5 + ` (DSR, VIPExternalIP)
load balancer 203.0.113.1:32100/TCP -> 32100 of 10.244.1.1
`},
		{name: "session affinity is by source (S55)",
			values: []any{
				fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Affinity(time.Hour).Build(), local},
			want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + ` (by source)
`},
		{name: "endpoints that terminate serve when no other does", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
			fm.Endpoint(webPort, "10.244.1.5:8080").Local().Terminating().Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
`},
		{name: "endpoints in no set are not used (topology)", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), local,
			fm.Endpoint(webPort, "10.244.2.5:8080").Sets(0).Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
`},
		{name: "TCP and UDP share a number", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).UDPPort("quic", 80).Build(), local,
			fm.Endpoint("default/web:quic/UDP", "10.244.1.6:8443").Local().Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
load balancer 10.96.0.10:80/UDP -> 8443 of ` + pod6 + `
`},
		{name: "SCTP is not served", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).SCTPPort("sip", 80).Build(), local,
			fm.Endpoint("default/web:sip/SCTP", "10.244.1.6:8443").Local().Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
`},
		{name: "endpoints with another target port are not used", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), local, remote,
			fm.Endpoint(webPort, "10.244.1.6:9090").Local().Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `, 10.244.2.5
`},
		{name: "a pod in the network of this node is not used", values: []any{
			fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), local,
			fm.Endpoint(webPort, "192.0.2.10:8080").Local().Build()}, want: `
load balancer 10.96.0.10:80/TCP -> 8080 of ` + pod5 + `
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			if tt.old != nil {
				tt.old(&m.hns.Supported)
			}
			m.hns.AddEndpoint(network,
				dp.Endpoint{Name: "cbr0_ep", IPs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
			var changes []func(*Options)
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			b := m.start(t, changes...)
			put(t, b, append([]any{backendtest.Node()}, tt.values...)...)
			require.Equal(t, tt.want[1:], m.balancers())

			b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
			require.NoError(t, b.Sync(t.Context()))
			require.Empty(t, m.balancers(), "nothing is left of it")
		})
	}
}

// balancers returns the load balancers as text.
func (m *machine) balancers() string {
	var list string
	for _, line := range strings.SplitAfter(m.hns.Dump(), "\n") {
		if strings.HasPrefix(line, "load balancer") {
			list += line
		}
	}
	return list
}

func TestAnAnnotationThatComesAndGoesIsFollowed(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, external().Build(), fm.Endpoint(webPort, "10.244.1.5:8080").Local().Build())
	plain := m.balancers()
	put(t, b, external().Annotation("preserve-destination", "true").Build())
	require.Contains(t, m.balancers(), "PreserveDIP")
	put(t, b, external().Build())
	require.Equal(t, plain, m.balancers())
}

func TestOneVIPOfSeveralPortsHasOneHealthCheck(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Name: "root", IPs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	b := m.start(t, func(o *Options) { o.RootEndpoint, o.HealthzPort = "root", 10256 })
	service := func(ports ...string) *model.Service {
		s := fm.Service("default/web").ClusterIP("10.96.0.10").LoadBalancerIP("203.0.113.1")
		for i, p := range ports {
			s.Port(p, uint16(80+i))
		}
		return s.Build()
	}
	put(t, b, service("http", "https"), fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build(),
		fm.Endpoint("default/web:https/TCP", "10.244.1.5:8443").Local().Build())
	require.Contains(t, m.balancers(), "load balancer 203.0.113.1:10256/TCP -> 10256 of 10.244.1.1\n")
	put(t, b, service("http"))
	require.Contains(t, m.balancers(), "load balancer 203.0.113.1:10256/TCP -> 10256 of 10.244.1.1\n")
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()))
	require.Empty(t, m.balancers())
}

func TestTheEndpointOfTheNodeIsLookedUpOnceForAllHealthChecks(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Name: "root", IPs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	b := m.start(t, func(o *Options) { o.RootEndpoint, o.HealthzPort = "root", 10256 })
	s := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80)
	for i := range 100 {
		s.LoadBalancerIP(fmt.Sprint("203.0.113.", i))
	}
	put(t, b, s.Build(), fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build())
	require.Equal(t, 100, strings.Count(m.balancers(), ":10256/TCP -> 10256 of 10.244.1.1\n"))
	reads := m.hns.TakeCalls().Reads
	require.Equal(t, []string{"EndpointByName"}, slices.DeleteFunc(reads, func(method string) bool {
		return method != "EndpointByName"
	}))
}

// Whatever its name, and whichever of the two comes first.
func TestAServicePortComesBeforeAHealthCheckAtItsAddress(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Name: "root", IPs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	b := m.start(t, func(o *Options) { o.RootEndpoint, o.HealthzPort = "root", 10256 })
	service := func() *fm.ServiceBuilder {
		return fm.Service("default/web").ClusterIP("10.96.0.10").LoadBalancerIP("203.0.113.1").Port("http", 80)
	}
	put(t, b, service().Build(), fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build())
	for _, name := range []string{"a", "z"} { // before http, and after it
		port := fmt.Sprintf("default/web:%s/TCP", name)
		endpoint := fm.Endpoint(port, "10.244.1.5:9090").Local().Build()
		put(t, b, service().Port(name, 10256).Build(), endpoint)
		require.Contains(t, m.balancers(), "load balancer 203.0.113.1:10256/TCP -> 9090 of 10.244.1.5")
		b.DeleteEndpoint(endpoint.Key())
		put(t, b, service().Build())
		require.Contains(t, m.balancers(), "load balancer 203.0.113.1:10256/TCP -> 10256 of 10.244.1.1\n")
	}
}

func TestAKeyThatMovesToAnotherServiceKeepsItsLoadBalancer(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	a := func(name string) *model.Service {
		return fm.Service(name).ClusterIP("10.96.0.1"+name[len(name)-1:]).ExternalIP("198.51.100.1").
			Port("http", 80).Build()
	}
	put(t, b, a("default/s1"), fm.Endpoint("default/s1:http/TCP", "10.244.1.5:80").Local().Build(),
		a("default/s2"), fm.Endpoint("default/s2:http/TCP", "10.244.1.6:80").Local().Build())
	require.Contains(t, m.balancers(), "198.51.100.1:80/TCP -> 80 of "+pod5)
	m.hns.TakeCalls()
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "s1"})
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.balancers(), "198.51.100.1:80/TCP -> 80 of "+pod6)
	require.Contains(t, m.writes(), "update load balancer 198.51.100.1:80/TCP")
}

// A pod's address may be on another node a moment ago, and on this one now (S52).
func TestARemoteAndALocalEndpointOfOneAddressAreNotConfused(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()[0], web()[1], fm.Endpoint(webPort, "10.244.1.9:8080").Build())
	require.Contains(t, m.hns.Dump(), "remote endpoint 10.244.1.9")
	local := m.addPod("10.244.1.9")
	put(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").Local().Build())
	list, err := m.hns.LoadBalancers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{local}, list[0].Endpoints)
	require.NotContains(t, m.hns.Dump(), "remote endpoint 10.244.1.9", "nobody needs it any more")

	// Most versions of HNS wait until the pod's own endpoint is gone.
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").OnNode("node-2").Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	m.hns.UniqueAddresses = false
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "remote endpoint 10.244.1.9")
	require.Contains(t, m.hns.Dump(), "local endpoint 10.244.1.9", "local ones are never deleted")
}

func TestARemoteEndpointGoesWithItsLastService(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, append(web(), fm.Service("default/api").ClusterIP("10.96.0.11").Port("http", 80).Build(),
		fm.Endpoint("default/api:http/TCP", "10.244.2.5:9090").Build())...)
	b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "remote endpoint 10.244.2.5")
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "api"})
	require.NoError(t, b.Sync(t.Context()))
	require.NotContains(t, m.hns.Dump(), "remote endpoint 10.244.2.5")
}

func TestRemoteEndpointsOfOthersAreUsedAndKept(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Remote: true, IPs: []netip.Addr{netip.MustParseAddr("10.244.2.5")}})
	before := m.hns.Dump()
	b := m.start(t)
	put(t, b, web()...)
	require.NotContains(t, m.writes(), "create endpoint 10.244.2.5")
	require.NoError(t, b.CleanUp(t.Context()))
	require.Equal(t, before, m.hns.Dump())
}

func TestARemoteEndpointThatAppearsBeforeWeCreateItIsUsed(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.hns.AddEndpoint(network, dp.Endpoint{Remote: true, IPs: []netip.Addr{netip.MustParseAddr("10.244.2.9")}})
	m.hns.SetFail(func(call string) error {
		if call == "create endpoint 10.244.2.9" {
			return errors.New("the address is in use")
		}
		return nil
	})
	put(t, b, fm.Endpoint(webPort, "10.244.2.9:8080").Build())
	require.Contains(t, m.balancers(), "10.244.2.5, 10.244.2.9\n")
}

// Endpoints of a node whose subnet was not known are made anew, with the right node, once it is.
func TestANodeThatJoinsTheOverlayIsFollowed(t *testing.T) {
	m := newOverlay(t)
	b := m.start(t, overlay)
	put(t, b, append(web(), fm.Endpoint(webPort, "10.244.3.5:8080").Build())...)
	const endpoint = "endpoint 10.244.3.5 02-11-0a-f4-03-05 named kube-proxy-lib 10.244.3.5 at "
	require.Contains(t, m.hns.Dump(), endpoint+"192.0.2.10\n")
	n, err := m.hns.Network(t.Context(), network)
	require.NoError(t, err)
	n.RemoteSubnets = append(slices.Clone(n.RemoteSubnets), dp.RemoteSubnet{
		Prefix: netip.MustParsePrefix("10.244.3.0/24"), Provider: netip.MustParseAddr("192.0.2.30")})
	m.hns.SetNetwork(n, false)
	b.repair(t)
	require.Contains(t, m.hns.Dump(), endpoint+"192.0.2.30\n")
	require.NotContains(t, m.hns.Dump(), "10.244.3.5 at 192.0.2.10")
	require.Contains(t, m.balancers(), "10.244.2.5, 10.244.3.5 (source 10.244.1.2)")
}

func TestAnOverlayNetworkNeedsASourceVIP(t *testing.T) {
	m := newOverlay(t)
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	require.ErrorContains(t, b.Sync(t.Context()), "needs a source VIP")
}

func TestUnsupportedFeaturesAreReportedOncePerService(t *testing.T) {
	m := newMachine(t)
	var told []frontend.Problem
	b := m.start(t, func(o *Options) {
		o.OnProblem = func(_ context.Context, p frontend.Problem) { told = append(told, p) }
	})
	put(t, b, backendtest.Node(), external().ExternalLocal().Affinity(time.Hour).SourceRange("10.0.0.0/8").
		SCTPPort("sip", 5060).Build(), fm.Endpoint(webPort, "10.244.1.5:8080").Local().Build(),
		fm.Endpoint(webPort, "10.244.1.6:9090").Local().Build(),
		fm.Endpoint(webPort, "192.0.2.10:8080").Local().Build())
	var messages []capability
	for _, p := range told {
		require.Equal(t, Unsupported, p.Reason)
		messages = append(messages, capability(p.Message))
	}
	require.ElementsMatch(t, []capability{sctp, affinityTimeout, sourceRanges, sourceRoutes, ports, host}, messages)
	told = nil
	put(t, b, fm.Endpoint(webPort, "10.244.2.5:8080").Build())
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.Empty(t, told)
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()))
	put(t, b, external().SourceRange("10.0.0.0/8").Build())
	require.True(t, slices.ContainsFunc(told,
		func(p frontend.Problem) bool { return p.Message == string(sourceRanges) }),
		"another service of the name: %v", told)
}

func TestOptionsAreValidated(t *testing.T) {
	_, err := New(t.Context(), Options{SourceVIP: netip.IPv4Unspecified(), Common: frontend.Common{
		Families: []model.Family{model.IPv4, model.IPv4}, NodePortAddresses: nodeaddr.Choice{Primary: true}}})
	for _, text := range []string{"network: must not be empty", "sourceVIP:", "families:",
		"nodePortAddresses: HNS serves"} {
		require.ErrorContains(t, err, text)
	}
	_, err = New(t.Context(), Options{})
	require.ErrorContains(t, err, "hns: network: must not be empty")
}
