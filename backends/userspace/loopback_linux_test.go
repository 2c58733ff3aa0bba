package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// node is a Loopback on a host whose addresses a test chooses. Endpoints are servers of the test, whatever their
// addresses.
type node struct {
	*fakemodel.Driver
	local    *userspace.Loopback
	host     *nodeaddr.Fake
	registry *prometheus.Registry
	nodePort uint16 // a free one, in both families and protocols

	timeout atomic.Bool // it does not answer instead
	mu      sync.Mutex
	servers map[netip.AddrPort]string // where an endpoint is; without, it refuses
	dialled []netip.AddrPort
}

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.IPv6Loopback()
)

func newNode(t *testing.T, choice nodeaddr.Choice) *node {
	n := &node{host: &nodeaddr.Fake{}, registry: prometheus.NewRegistry(), servers: map[netip.AddrPort]string{}}
	n.nodePort = freePort(t)
	n.has("127.0.0.1", "127.0.0.2", "::1", "192.0.2.10", "2001:db8::10")
	var err error
	n.local, err = userspace.NewLoopback(t.Context(), userspace.Options{Common: frontend.Common{
		NodePortAddresses: choice, Metrics: n.registry, Host: n.host},
	}.With(userspace.Tuning{Dial: n.dial, DialTimeout: 2 * time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.local.Close()) })
	n.Driver = fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return n.local }})
	return n
}

// freePort returns a port that is free on both loopback addresses, for TCP and UDP. It is one of Kubernetes' node
// ports, which the kernel gives to no connection.
func freePort(t *testing.T) uint16 {
	for {
		port := uint16(30000 + rand.IntN(2000))
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		_ = l.Close()
		l, err = net.Listen("tcp6", fmt.Sprintf("[::1]:%d", port))
		if !errors.Is(err, syscall.EADDRINUSE) {
			need.That(t, err == nil, "the address ::1")
			_ = l.Close()
			return port
		}
	}
}

// has sets the addresses of the host.
func (n *node) has(list ...string) {
	var addrs []nodeaddr.HostAddress
	for _, a := range list {
		addrs = append(addrs, nodeaddr.HostAddress{Addr: netip.MustParseAddr(a), Interface: "any"})
	}
	n.host.Set(addrs...)
}

func (n *node) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	server := n.servers[to]
	n.dialled = append(n.dialled, to)
	n.mu.Unlock()
	if server == "" && n.timeout.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if server == "" {
		return nil, syscall.ECONNREFUSED
	}
	return new(net.Dialer).DialContext(ctx, network, server)
}

// endpoint puts an endpoint of port http or dns at a server.
func (n *node) endpoint(port, target, server string) *fakemodel.EndpointBuilder {
	n.mu.Lock()
	n.servers[netip.MustParseAddrPort(target)] = server
	n.mu.Unlock()
	return fakemodel.Endpoint("default/web:"+port, target)
}

func (n *node) web() *fakemodel.ServiceBuilder {
	return fakemodel.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").ExternalIP("192.0.2.10").
		Port("http", 80).NodePort(n.nodePort)
}

// served lists where something is served, as "http 127.0.0.1".
func (n *node) served(t *testing.T) (list []string) {
	for _, l := range n.local.Listeners() {
		require.Equal(t, n.nodePort, l.Addr.Port())
		list = append(list, l.Port.Port+" "+l.Addr.Addr().String())
	}
	slices.Sort(list)
	return list
}

// who makes a connection to the node port and returns the name of the server.
func (n *node) who(t *testing.T, at netip.Addr) string {
	t.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(at, n.nodePort).String())
	require.NoError(t, err)
	defer c.Close()
	name, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(name)
}

func (n *node) refused(at netip.Addr) bool {
	c, err := net.Dial("tcp", netip.AddrPortFrom(at, n.nodePort).String())
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (n *node) metric(t *testing.T, name string) float64 {
	return backendtest.Metrics(t, n.registry, "kubeproxy_nftables_localhost_nodeport_")[name]
}

func TestLoopbackServesNodePortsOnTwoAddressesAndNothingElse(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	n.Set(n.web().UDPPort("dns", 53).NodePort(n.nodePort).SCTPPort("sctp", 90).NodePort(n.nodePort).Build(),
		fakemodel.Service("default/inside").ClusterIP("10.96.0.11", "fd00:96::11").Port("http", 80).Build(),
		fakemodel.Endpoint("default/inside:http/TCP", "10.244.1.5:80").Build(),
		fakemodel.Endpoint("default/web:sctp/SCTP", "10.244.1.5:90").Build(),
		n.endpoint("http/TCP", "10.244.1.5:80", named(t, "local4")).Local().Build(),
		n.endpoint("http/TCP", "10.244.2.5:80", named(t, "remote4")).Build(),
		n.endpoint("http/TCP", "[fd00:244:1::5]:80", named(t, "local6")).Local().Build(),
		n.endpoint("http/TCP", "[fd00:244:2::5]:80", named(t, "remote6")).Build(),
		n.endpoint("dns/UDP", "10.244.1.5:53", echo(t, "4:")).Build(),
		n.endpoint("dns/UDP", "[fd00:244:1::5]:53", echo(t, "6:")).Build())
	n.Sync()
	assert.Equal(t, []string{"dns 127.0.0.1", "dns ::1", "http 127.0.0.1", "http ::1"}, n.served(t))
	assert.EqualValues(t, 2, n.metric(t, "listeners IPv4"))
	assert.EqualValues(t, 2, n.metric(t, "listeners IPv6"))
	assert.True(t, n.refused(netip.MustParseAddr("127.0.0.2")))
	for at, want := range map[netip.Addr][]string{loopback4: {"local4", "remote4"}, loopback6: {"local6", "remote6"}} {
		seen := map[string]bool{}
		for range 100 { // one of the two alone: once in 2^99
			seen[n.who(t, at)] = true
		}
		for _, name := range want {
			assert.True(t, seen[name], "%v: %v", at, seen)
		}
		assert.Len(t, seen, 2)
	}
	for at, want := range map[netip.Addr]string{loopback4: "4:hello", loopback6: "6:hello"} {
		c, err := net.Dial("udp", netip.AddrPortFrom(at, n.nodePort).String())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "hello")
		require.NoError(t, err)
		b := make([]byte, 100)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		got, err := c.Read(b)
		require.NoError(t, err)
		assert.Equal(t, want, string(b[:got]))
	}
	text, err := n.local.DescribeService(t.Context(), fakemodel.Service("default/web").Build().Name)
	require.NoError(t, err)
	assert.Contains(t, text, fmt.Sprintf("listens on 127.0.0.1:%d", n.nodePort))
}

// With traffic policy Local only endpoints of this node are used, and without any connections are refused.
func TestLoopbackKeepsToTheNodeWithPolicyLocal(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	local := n.endpoint("http/TCP", "10.244.1.5:80", named(t, "local")).Local().Build()
	remote := n.endpoint("http/TCP", "10.244.2.5:80", named(t, "remote")).Build()
	n.Set(n.web().ExternalLocal().Build(), local, remote)
	n.Sync()
	for range 50 {
		require.Equal(t, "local", n.who(t, loopback4))
	}
	n.Delete(local)
	n.Sync()
	assert.True(t, n.refused(loopback4))
	assert.Empty(t, n.served(t))
	n.Set(local)
	n.Sync()
	assert.Equal(t, "local", n.who(t, loopback4))
}

func TestLoopbackFollowsTheChoiceOfAddressesAndTheHost(t *testing.T) {
	prefixes := func(list ...string) (c nodeaddr.Choice) {
		for _, p := range list {
			c.CIDRs = append(c.CIDRs, netip.MustParsePrefix(p))
		}
		return c
	}
	for _, test := range []struct {
		name   string
		choice nodeaddr.Choice
		want   []string
	}{
		{"all", nodeaddr.Choice{}, []string{"http 127.0.0.1", "http ::1"}},
		{"both loopback ranges", prefixes("127.0.0.0/8", "::1/128"), []string{"http 127.0.0.1", "http ::1"}},
		{"a family without a range means all of it", prefixes("127.0.0.0/8"), []string{"http 127.0.0.1", "http ::1"}},
		{"one family", prefixes("127.0.0.1/32", "2001:db8::/32"), []string{"http 127.0.0.1"}},
		{"another loopback address", prefixes("127.0.0.2/32", "2001:db8::/32"), nil},
		{"primary", nodeaddr.Choice{Primary: true}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, test.choice)
			n.Set(n.web().Build(), fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:80").Build(),
				fakemodel.Endpoint("default/web:http/TCP", "[fd00::5]:80").Build())
			n.Sync()
			assert.Equal(t, test.want, n.served(t))
			n.has("192.0.2.10")
			require.Eventually(t, func() bool { return len(n.local.Listeners()) == 0 }, time.Minute, time.Millisecond)
			n.has("::1", "127.0.0.1")
			require.Eventually(t, func() bool { return slices.Equal(test.want, n.served(t)) }, time.Minute,
				time.Millisecond)
		})
	}
}

// A client whose endpoint refuses gets another one, with session affinity too.
func TestAConnectionGoesToAnotherEndpointIfOneRefuses(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		t.Run(affinity.String(), func(t *testing.T) {
			n := newNode(t, nodeaddr.Choice{})
			service := n.web()
			if affinity > 0 {
				service.Affinity(affinity)
			}
			n.Set(service.Build(), n.endpoint("http/TCP", "10.244.1.5:80", "").Build(),
				n.endpoint("http/TCP", "10.244.1.6:80", "").Build(),
				n.endpoint("http/TCP", "10.244.1.7:80", named(t, "good")).Build())
			n.Sync()
			for range 40 {
				require.Equal(t, "good", n.who(t, loopback4))
			}
			if affinity > 0 {
				n.mu.Lock()
				defer n.mu.Unlock()
				assert.LessOrEqual(t, len(n.dialled), 42, "the client stays with the endpoint that answered")
			}
		})
	}
}

// When all endpoints refuse, the connection is reset after three attempts, each at another one.
func TestADifferentEndpointIsTriedEachTime(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	n.Set(n.web().Build(), n.endpoint("http/TCP", "10.244.1.5:80", "").Build(),
		n.endpoint("http/TCP", "10.244.1.6:80", "").Build(), n.endpoint("http/TCP", "10.244.1.7:80", "").Build())
	n.Sync()
	c, err := net.Dial("tcp", netip.AddrPortFrom(loopback4, n.nodePort).String())
	if err == nil { // otherwise it was reset at once
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.SortFunc(n.dialled, netip.AddrPort.Compare)
	assert.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:80"),
		netip.MustParseAddrPort("10.244.1.6:80"), netip.MustParseAddrPort("10.244.1.7:80")}, n.dialled)
}

func TestLoopbackKeepsAClientAtItsEndpoint(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	n.Set(n.web().Affinity(time.Hour).Build())
	for i := range 5 {
		n.Set(n.endpoint("http/TCP", fmt.Sprintf("10.244.1.%d:80", i+1), named(t, fmt.Sprint(i))).Build())
	}
	for i := range 5 {
		n.Set(n.endpoint("http/TCP", fmt.Sprintf("[fd00:244::%d]:80", i+1), named(t, fmt.Sprint(i))).Build())
	}
	n.Sync()
	for _, at := range []netip.Addr{loopback4, loopback6} {
		first := n.who(t, at)
		for range 50 {
			require.Equal(t, first, n.who(t, at))
		}
	}
}

// An endpoint that does not answer is given up after DialTimeout, and another one serves the client.
func TestAConnectionGoesToAnotherEndpointIfOneDoesNotAnswer(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	n.timeout.Store(true)
	n.Set(n.web().Build(), n.endpoint("http/TCP", "10.244.1.5:80", "").Build(),
		n.endpoint("http/TCP", "10.244.1.7:80", named(t, "good")).Build())
	n.Sync()
	silent := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Contains(n.dialled, netip.MustParseAddrPort("10.244.1.5:80"))
	}
	for !silent() { // half of the connections
		require.Equal(t, "good", n.who(t, loopback4))
	}
}

// Close does not wait for an endpoint that does not answer.
func TestLoopbackIsClosedDuringADial(t *testing.T) {
	dialling := make(chan struct{}, 1)
	var dials atomic.Int32
	n := &node{host: &nodeaddr.Fake{}, nodePort: freePort(t)}
	n.has("127.0.0.1")
	o := userspace.Options{Common: frontend.Common{Host: n.host}}
	l, err := userspace.NewLoopback(t.Context(), o.With(userspace.Tuning{
		DialTimeout: 24 * time.Hour,
		Dial: func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
			dials.Add(1)
			dialling <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}}))
	require.NoError(t, err)
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return l }})
	d.Set(n.web().Build(), fakemodel.Endpoint("default/web:http/TCP", "10.244.1.5:80").Build())
	d.Sync()
	c, err := net.Dial("tcp", netip.AddrPortFrom(loopback4, n.nodePort).String())
	require.NoError(t, err)
	defer c.Close()
	<-dialling
	require.NoError(t, l.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.EqualValues(t, 1, dials.Load(), "there is no other attempt")
}

// A program of the host that has the port keeps it, and an error says so. The port is served when it is free.
func TestANodePortThatAnotherProgramHasIsServedOnceItIsFree(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "0.0.0.0"} {
		t.Run(at, func(t *testing.T) {
			n := newNode(t, nodeaddr.Choice{})
			program, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", at, n.nodePort))
			require.NoError(t, err)
			acceptAll(t, program, func(c *net.TCPConn) {
				_, _ = io.WriteString(c, "program")
				_ = c.Close()
			})
			datagrams, err := net.ListenPacket("udp4", fmt.Sprintf("%s:%d", at, n.nodePort))
			require.NoError(t, err)
			defer datagrams.Close()

			n.Set(n.web().UDPPort("dns", 53).NodePort(n.nodePort).Build(),
				n.endpoint("dns/UDP", "10.244.1.5:53", echo(t, "4:")).Build(),
				n.endpoint("http/TCP", "10.244.1.5:80", named(t, "4")).Build(),
				n.endpoint("http/TCP", "[fd00::5]:80", named(t, "6")).Build())
			err = n.TrySync()
			var failed []string
			for _, e := range sink.PortErrors(err) {
				require.ErrorIs(t, e, syscall.EADDRINUSE)
				require.ErrorContains(t, e, "another program of this host")
				failed = append(failed, e.Port.Port+" "+e.Family.String())
			}
			assert.Equal(t, []string{"dns IPv4", "http IPv4"}, failed)
			assert.EqualValues(t, 2, n.metric(t, "listener_creation_failures_total IPv4"))
			assert.EqualValues(t, 0, n.metric(t, "listener_creation_failures_total IPv6"))
			assert.Equal(t, "program", n.who(t, loopback4))
			assert.Equal(t, "6", n.who(t, loopback6), "the other family is served")

			require.NoError(t, program.Close())
			require.NoError(t, datagrams.Close())
			n.local.ResyncFailed() // as runners do
			require.NoError(t, n.TrySync())
			assert.Equal(t, "4", n.who(t, loopback4))
			assert.Equal(t, []string{"dns 127.0.0.1", "http 127.0.0.1", "http ::1"}, n.served(t))
		})
	}
}

// Connections continue when their endpoint, other endpoints, the node port and the service go. New ones are refused.
func TestLoopbackConnectionsOutliveTheirService(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	service := n.web().Build()
	one := n.endpoint("http/TCP", "10.244.1.5:80", mirror(t)).Build()
	n.Set(service, one)
	n.Sync()
	c, err := net.Dial("tcp", netip.AddrPortFrom(loopback4, n.nodePort).String())
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, "a", exchange(t, c, "a"))
	for i := range 20 {
		other := n.endpoint("http/TCP", fmt.Sprintf("10.244.2.%d:80", i+1), "").Build()
		n.Set(other)
		n.Sync()
		require.Equal(t, "b", exchange(t, c, "b"))
		n.Delete(other)
	}
	n.Delete(one)
	n.Sync()
	require.Equal(t, "c", exchange(t, c, "c"))
	assert.True(t, n.refused(loopback4))
	n.Set(one, fakemodel.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").Port("http", 80).Build())
	n.Sync()
	assert.True(t, n.refused(loopback4), "it has no node port any more")
	n.Set(service)
	n.Sync()
	assert.False(t, n.refused(loopback4), "it has one again, and its endpoints are known")
	n.Delete(one, service)
	n.Sync()
	require.Equal(t, "d", exchange(t, c, "d"))
	assert.True(t, n.refused(loopback4))
}

// The older of two services has the node port; the other one gets it when it goes.
func TestLoopbackGivesANodePortToOneService(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	n.Set(n.web().Created(time.Unix(100, 0)).Build(), n.endpoint("http/TCP", "10.244.1.5:80", named(t, "old")).Build())
	n.Set(fakemodel.Service("aaa/new").ClusterIP("10.96.0.20").Port("http", 80).NodePort(n.nodePort).
		Created(time.Unix(200, 0)).Build(), fakemodel.Endpoint("aaa/new:http/TCP", "10.244.1.6:80").Build())
	n.mu.Lock()
	n.servers[netip.MustParseAddrPort("10.244.1.6:80")] = named(t, "new")
	n.mu.Unlock()
	n.Sync()
	assert.Equal(t, "old", n.who(t, loopback4))
	n.Delete(n.web().Build())
	n.Sync()
	assert.Equal(t, "new", n.who(t, loopback4))
}

// The metrics go with the sink, so that another one can register them.
func TestLoopbackCanBeMadeAgain(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 {
		l, err := userspace.NewLoopback(t.Context(), userspace.Options{
			Common: frontend.Common{Metrics: registry, Host: &nodeaddr.Fake{}}})
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	l, err := userspace.NewLoopback(t.Context(), userspace.Options{
		Common: frontend.Common{Metrics: registry, Host: &nodeaddr.Fake{}}})
	require.NoError(t, err)
	defer l.Close()
	_, err = userspace.NewLoopback(t.Context(), userspace.Options{
		Common: frontend.Common{Metrics: registry, Host: &nodeaddr.Fake{}}})
	require.ErrorContains(t, err, "metrics")
}

// A connection of the host may have a node port's number, where the node-port range overlaps the ephemeral ports.
func TestANodePortThatAConnectionHasIsServedOnceItEnds(t *testing.T) {
	n := newNode(t, nodeaddr.Choice{})
	c, err := net.Dial("tcp", mirror(t))
	require.NoError(t, err)
	defer c.Close()
	n.nodePort = uint16(c.LocalAddr().(*net.TCPAddr).Port)
	n.Set(n.web().Build(), n.endpoint("http/TCP", "10.244.1.5:80", named(t, "4")).Build())
	require.Len(t, sink.PortErrors(n.TrySync()), 1)
	require.Equal(t, "a", exchange(t, c, "a"), "the connection continues")
	require.NoError(t, c.(*net.TCPConn).SetLinger(0)) // otherwise the kernel keeps the port for a minute
	require.NoError(t, c.Close())
	n.local.ResyncFailed()
	require.NoError(t, n.TrySync())
	assert.Equal(t, "4", n.who(t, loopback4))
}
