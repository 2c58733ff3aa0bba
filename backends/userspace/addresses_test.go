package userspace_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestWhereLocalhostListens(t *testing.T) {
	fr := func(addr string, port uint16, k frontend.Kind) frontend.Frontend {
		return frontend.Frontend{Key: frontend.Key{Addr: netip.MustParseAddr(addr), Port: port, Protocol: model.TCP},
			Kind: k}
	}
	listen := userspace.Localhost{}.ListenOn
	first := listen(fr("10.96.0.10", 80, frontend.ClusterIP))
	require.Len(t, first, 9)
	for _, at := range first[:8] {
		assert.Equal(t, "127.0.0.1", at.Addr().String())
		assert.GreaterOrEqual(t, at.Port(), uint16(20000))
		assert.Less(t, at.Port(), uint16(30000))
	}
	assert.Len(t, sets.New(first...), 9, "all differ")
	assert.Equal(t, "127.0.0.1:0", first[8].String(), "where all of these numbers are taken")
	assert.Equal(t, first, listen(fr("10.96.0.10", 80, frontend.ClusterIP)), "the same after a restart")
	assert.NotEqual(t, first, listen(fr("10.96.0.10", 81, frontend.ClusterIP)))
	assert.Equal(t, "::1", listen(fr("fd96::10", 80, frontend.ClusterIP))[0].Addr().String())
	assert.Empty(t, listen(fr("192.0.2.1", 80, frontend.ExternalIP)))
	assert.Empty(t, listen(fr("192.0.2.1", 30080, frontend.NodePort)))
	assert.Equal(t, "127.0.0.1:30080", listen(fr("127.0.0.1", 30080, frontend.NodePort))[0].String())
}

func TestOptionsThatAreWrongAreNamed(t *testing.T) {
	_, err := userspace.New(t.Context(), userspace.Options{
		Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}}}})
	require.EqualError(t, err, `userspace: nodePortAddresses[0]: invalid Prefix is not a prefix`)
	_, err = userspace.New(t.Context(), userspace.Options{Common: frontend.Common{Families: []model.Family{7}}})
	require.ErrorContains(t, err, "invalid or duplicate family")
}

// Node ports follow the host's addresses without a Sync.
func TestNodePortsFollowTheHost(t *testing.T) {
	nodePort := freeNodePort(t)
	host := &nodeaddr.Fake{}
	b, err := userspace.New(t.Context(),
		userspace.Options{LocalhostNodePorts: true,
			Common:    frontend.Common{Families: []model.Family{model.IPv4}, Host: host},
			Addresses: userspace.Localhost{}})
	require.NoError(t, err)
	defer b.Close()
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return b }})
	d.Set(fakemodel.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(nodePort).Build(),
		tcpEndpoint("127.0.0.1:1"))
	d.Sync()
	served := func() bool {
		return slices.ContainsFunc(b.Listeners(), func(l userspace.Listener) bool {
			return l.Frontend.Kind == frontend.NodePort &&
				l.Addr == netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), nodePort)
		})
	}
	require.False(t, served())
	host.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"})
	require.Eventually(t, served, time.Minute, time.Millisecond)
	host.Set()
	require.Eventually(t, func() bool { return !served() }, time.Minute, time.Millisecond)
}

// A service may list an address of the node as its external IP, at a port number that is the node port of another one.
// Whoever has the address keeps it (S59). Of one service the external IP comes first.
func TestANodePortAndAnExternalIPHaveOneOwner(t *testing.T) {
	number := freeNodePort(t)
	host := &nodeaddr.Fake{}
	host.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"})
	b, err := userspace.New(t.Context(),
		userspace.Options{LocalhostNodePorts: true,
			Common: frontend.Common{Families: []model.Family{model.IPv4}, Host: host}})
	require.NoError(t, err)
	defer b.Close()
	d := fakemodel.NewDriver(t, fakemodel.Options{NewSink: func() sink.Sink { return b }})
	owner := func() string {
		for _, l := range b.Listeners() {
			if l.Addr == netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), number) {
				return l.Port.Service.Name + " " + l.Frontend.Kind.String()
			}
		}
		return "nobody"
	}
	// Its cluster IP is one that the host has, so that it can be served.
	service := func(name, clusterIP string) *fakemodel.ServiceBuilder {
		return fakemodel.Service("default/"+name).ClusterIP(clusterIP).Port("http", number)
	}
	web := service("web", "127.0.0.2").NodePort(number)
	other := service("aaa", "127.0.0.3").ExternalIP("127.0.0.1").Build()
	endpoint := fakemodel.Endpoint("default/aaa:http/TCP", "127.0.0.1:1").Build()
	d.Set(web.Build(), tcpEndpoint("127.0.0.1:1"))
	d.Sync()
	require.Equal(t, "web node port", owner())
	d.Set(other, endpoint)
	d.Sync()
	require.Equal(t, "web node port", owner(), "it keeps what it has (S59)")
	d.Delete(tcpEndpoint("127.0.0.1:1"), web.Build())
	d.Sync()
	require.Equal(t, "aaa external IP", owner())
	d.Set(web.Build(), tcpEndpoint("127.0.0.1:1"))
	d.Sync()
	require.Equal(t, "aaa external IP", owner(), "it keeps what it has (S59)")
	d.Delete(endpoint, other)
	d.Sync()
	require.Equal(t, "web node port", owner())
	d.Set(service("web", "127.0.0.2").NodePort(number).ExternalIP("127.0.0.1").Build())
	d.Sync()
	require.Equal(t, "web external IP", owner(), "of the same service")
	d.Set(web.Build())
	d.Sync()
	require.Equal(t, "web node port", owner())
	d.Set(other, endpoint)
	d.Delete(tcpEndpoint("127.0.0.1:1"), web.Build())
	d.Sync()
	require.Equal(t, "aaa external IP", owner())
}

// refusing are Addresses of which one may not be added.
type refusing struct {
	userspace.Existing
	mu      sync.Mutex // a retry is a call of another goroutine
	refused error
	added   []netip.Addr
}

func (r *refusing) Update(_ context.Context, _ model.Family, _ bool, add, _ []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = add
	return r.refused
}

func TestAnAddressThatCannotBeAddedDoesNotAffectOthers(t *testing.T) {
	number := freeNodePort(t)
	addresses := &refusing{refused: errors.New("one of them is refused")}
	l := newLaptop(t, userspace.Options{Addresses: addresses})
	l.Set(fakemodel.Service("default/web").ClusterIP("127.0.0.1").Port("http", number).Build(),
		tcpEndpoint(named(t, "web")))
	err := l.TrySync()
	require.ErrorContains(t, err, "one of them is refused")
	assert.True(t, sink.FailedFamilies(err).Has(model.IPv4))
	assert.Equal(t, "web", l.who(t))
	addresses.mu.Lock()
	addresses.refused, addresses.added = nil, nil
	addresses.mu.Unlock()
	l.Resync()
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, addresses.added)
}
