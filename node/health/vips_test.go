package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// addresses are addresses of the host, and families of which all serve node ports.
func addresses(all model.FamilySet, list ...string) nodeaddr.Addresses {
	a := nodeaddr.Addresses{All: all}
	for _, text := range list {
		a.IPs = append(a.IPs, netip.MustParseAddr(text))
	}
	slices.SortFunc(a.IPs, netip.Addr.Compare)
	return a
}

// withVIPs is a service of both families with VIPs and external IPs.
func withVIPs(name string, port uint16, vips []string, external ...string) *model.Service {
	s := service(name, port, 1, 2)
	s.LoadBalancerIPs, s.ExternalIPs = addresses(0, vips...).IPs, addresses(0, external...).IPs
	return s
}

// The health check answers at the service's own VIPs and external IPs that the host has (S65).
func TestHealthChecksAnswerAtVIPsOfTheHost(t *testing.T) {
	vips := []string{"203.0.113.9", "203.0.113.10", "2001:db8:9::9"}
	for name, test := range map[string]struct {
		nodePorts, host nodeaddr.Addresses
		service         *model.Service
		want            []string
	}{
		"none is the host's": {addresses(0, "192.0.2.1"), addresses(0, "192.0.2.1", "192.0.2.2"),
			withVIPs("web", 32000, vips), []string{"192.0.2.1:32000"}},
		"one is the host's": {addresses(0, "192.0.2.1"), addresses(0, "192.0.2.1", "203.0.113.9"),
			withVIPs("web", 32000, vips), []string{"192.0.2.1:32000", "203.0.113.9:32000"}},
		"an external IP": {addresses(0, "192.0.2.1"), addresses(0, "203.0.113.7"),
			withVIPs("web", 32000, nil, "203.0.113.7", "203.0.113.8"), []string{"192.0.2.1:32000", "203.0.113.7:32000"}},
		"both a VIP and an external IP": {addresses(0, "192.0.2.1"), addresses(0, "203.0.113.9"),
			withVIPs("web", 32000, vips, "203.0.113.9"), []string{"192.0.2.1:32000", "203.0.113.9:32000"}},
		"of both families": {addresses(0, "192.0.2.1", "2001:db8::1"), addresses(0, "203.0.113.10", "2001:db8:9::9"),
			withVIPs("web", 32000, vips),
			[]string{"192.0.2.1:32000", "203.0.113.10:32000", "[2001:db8:9::9]:32000", "[2001:db8::1]:32000"}},
		"without addresses of node ports": {addresses(0), addresses(0, "203.0.113.9"),
			withVIPs("web", 32000, vips), []string{"203.0.113.9:32000"}},
		"an address of node ports, too": {addresses(0, "192.0.2.1", "203.0.113.9"), addresses(0, "192.0.2.1", "203.0.113.9"),
			withVIPs("web", 32000, vips), []string{"192.0.2.1:32000", "203.0.113.9:32000"}},
		"all IPv4 addresses serve node ports": {addresses(model.IPv4.Set(), "192.0.2.1"),
			addresses(0, "203.0.113.9", "2001:db8:9::9"), withVIPs("web", 32000, vips),
			[]string{"0.0.0.0:32000", "[2001:db8:9::9]:32000"}},
		"a loopback address": {addresses(0, "192.0.2.1"), addresses(0, "127.0.0.1", "::1"),
			withVIPs("web", 32000, []string{"127.0.0.1", "::1"}), []string{"192.0.2.1:32000"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, e := &listeners{}, &events{}
			s := NewServices(nil, ServicesOptions{Listen: l.listen, Events: e,
				Addresses:     func() nodeaddr.Addresses { return test.nodePorts },
				HostAddresses: func() nodeaddr.Addresses { return test.host }})
			defer s.Close()
			s.SetService(test.service)
			require.NoError(t, s.Sync(t.Context()))
			require.Equal(t, test.want, l.addresses())
			for _, address := range test.want {
				_, header, _ := l.get(t, address)
				weight := "1"
				if netip.MustParseAddrPort(address).Addr().Is6() {
					weight = "2"
				}
				require.Equal(t, weight, header.Get("X-Load-Balancing-Endpoint-Weight"), address)
			}
			require.Empty(t, *e)
		})
	}
}

// A VIP that comes brings its listener, and one that goes takes it away; no other is touched.
func TestListenersFollowTheVIPsOfTheHost(t *testing.T) {
	l, next := &listeners{}, &sink.Recorder{}
	host := addresses(0, "192.0.2.1")
	s := NewServices(next, ServicesOptions{Listen: l.listen,
		Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
		HostAddresses: func() nodeaddr.Addresses { return host }})
	defer s.Close()
	sync := func(want ...string) {
		t.Helper()
		require.NoError(t, s.Sync(t.Context()))
		require.Equal(t, want, l.takeLog())
	}
	s.SetService(withVIPs("one", 32001, []string{"203.0.113.9"}))
	s.SetService(withVIPs("two", 32002, []string{"203.0.113.9"}, "203.0.113.8")) // two services share a VIP
	s.SetService(withVIPs("other", 32003, []string{"203.0.113.7"}))
	sync("open tcp4 192.0.2.1:32001", "open tcp4 192.0.2.1:32003", "open tcp4 192.0.2.1:32002")

	host = addresses(0, "192.0.2.1", "203.0.113.9")
	sync("open tcp4 203.0.113.9:32001", "open tcp4 203.0.113.9:32002")
	host = addresses(0, "192.0.2.1", "203.0.113.9", "198.51.100.1")
	sync()
	host = addresses(0, "192.0.2.1", "203.0.113.8")
	sync("close 203.0.113.9:32001", "close 203.0.113.9:32002", "open tcp4 203.0.113.8:32002")

	// The Service's addresses change.
	s.SetService(withVIPs("two", 32002, []string{"203.0.113.9"}))
	sync("close 203.0.113.8:32002")
	s.SetService(withVIPs("other", 32003, []string{"203.0.113.8"}))
	sync("open tcp4 203.0.113.8:32003")

	// A family that could not be applied keeps its listeners until it is.
	host = addresses(0, "192.0.2.1")
	next.FailNext(&sink.FamilyError{Family: model.IPv4, Err: errors.New("not applied")})
	require.Error(t, s.Sync(t.Context()))
	require.Empty(t, l.takeLog())
	s.ForceResync()
	sync("close 203.0.113.8:32003")
	s.DeleteService(model.ServiceName{Namespace: "default", Name: "two"})
	sync("close 192.0.2.1:32002")
}

func TestAPortInUseAtAVIPCausesAnEventAndIsTriedAgain(t *testing.T) {
	l := &listeners{fail: map[string]error{"203.0.113.9:32000": errors.New("address already in use")}}
	e := &events{}
	s := NewServices(nil, ServicesOptions{Listen: l.listen, Events: e, NodeName: "node-1",
		Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
		HostAddresses: func() nodeaddr.Addresses { return addresses(0, "203.0.113.9") }})
	defer s.Close()
	s.retries.pause = 0
	s.SetService(withVIPs("web", 32000, []string{"203.0.113.9"}))
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{`default/web FailedToStartServiceHealthcheck Listen: node node-1 failed to start ` +
		`healthcheck "default/web" on port 32000: 203.0.113.9:32000: address already in use`}, []string(*e))
	require.Equal(t, []string{"192.0.2.1:32000"}, l.addresses())
	l.fail = nil
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{"192.0.2.1:32000", "203.0.113.9:32000"}, l.addresses())
}

// A VIP may have left this node before the port is opened: that is not an error.
func TestAVIPThatHasMovedOnCausesNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := true
		var opened []string
		e, requests := &events{}, make(chan struct{}, 8)
		s := NewServices(nil, ServicesOptions{
			Events: e, RequestSync: func() { requests <- struct{}{} },
			Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
			HostAddresses: func() nodeaddr.Addresses { return addresses(0, "203.0.113.9") },
			Listen: func(_ context.Context, _, address string) (net.Listener, error) {
				if gone && address == "203.0.113.9:32000" {
					return nil, syscall.EADDRNOTAVAIL
				}
				opened = append(opened, address)
				return newIdleListener(), nil
			},
		})
		defer s.Close()
		s.SetService(withVIPs("web", 32000, []string{"203.0.113.9"}))
		require.NoError(t, s.Sync(t.Context()))
		require.Empty(t, *e)
		require.Equal(t, []string{"192.0.2.1:32000"}, opened)
		gone = false
		<-requests
		require.NoError(t, s.Sync(t.Context()))
		require.Equal(t, []string{"192.0.2.1:32000", "203.0.113.9:32000"}, opened)
		time.Sleep(time.Hour) // virtual
		require.Empty(t, requests)
	})
}

// Each address that is checked takes a socket and a goroutine, so a Service has few, and an Event says so.
func TestAServiceIsCheckedAtFewOfItsAddresses(t *testing.T) {
	const external = 20_000
	var opened []string
	e := &events{}
	next := &sink.Recorder{}
	host := nodeaddr.Addresses{IPs: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}
	web := withVIPs("web", 32000, []string{"203.0.113.9"})
	for i := range external {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		web.ExternalIPs = append(web.ExternalIPs, a)
	}
	host.IPs = append(slices.Clone(web.ExternalIPs), host.IPs...)
	s := NewServices(next, ServicesOptions{Events: e, NodeName: "node-1",
		Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
		HostAddresses: func() nodeaddr.Addresses { return host },
		Listen: func(_ context.Context, _, address string) (net.Listener, error) {
			opened = append(opened, address)
			return newIdleListener(), nil
		}})
	defer s.Close()
	s.SetService(web)
	require.NoError(t, s.Sync(t.Context()))
	require.Len(t, opened, 1+healthcheck.MaxVIPs)
	require.Equal(t, []string{"192.0.2.1:32000", "203.0.113.9:32000", "10.1.0.0:32000"}, opened[:3], "VIPs come first")
	const told = `default/web TooManyHealthCheckAddresses Listen: node node-1 serves healthcheck "default/web" at 16 of ` +
		`its load-balancer and external IPs in each family, not at the others`
	require.Equal(t, []string{told}, []string(*e))

	before := s.outside.looked
	again := *web
	again.HealthCheck = &model.HealthCheck{NodePort: 32000, LocalEndpoints: model.PerFamily[int]{IPv4: 2}}
	s.SetService(&again)
	require.NoError(t, s.Sync(t.Context()))
	require.Len(t, opened, 1+healthcheck.MaxVIPs)
	require.Less(t, s.outside.looked-before, 4*external, "addresses are looked at, not compared with each other")
	next.FailNext(&sink.FamilyError{Family: model.IPv4, Err: errors.New("not applied")})
	s.SetService(web)
	require.Error(t, s.Sync(t.Context()))
	require.NoError(t, s.Sync(t.Context()))
	require.Len(t, *e, 1, "it is told once")

	few := *web
	few.ExternalIPs = web.ExternalIPs[:healthcheck.MaxVIPs-1]
	s.SetService(&few)
	require.NoError(t, s.Sync(t.Context()))
	s.SetService(web)
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []string{told, told}, []string(*e), "again after it had few")
}

// An address of the host that comes or goes is searched for in each Service; not all addresses of each are looked at.
func TestWhatAnAddressOfTheHostCosts(t *testing.T) {
	const services, each = 20, 1000
	host := addresses(0, "192.0.2.1")
	var opened []string
	s := NewServices(nil, ServicesOptions{
		Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
		HostAddresses: func() nodeaddr.Addresses { return host },
		Listen: func(_ context.Context, _, address string) (net.Listener, error) {
			opened = append(opened, address)
			return newIdleListener(), nil
		}})
	defer s.Close()
	for i := range services {
		web := service(fmt.Sprint("web-", i), uint16(32000+i), 1, -1)
		for j := range each {
			web.ExternalIPs = append(web.ExternalIPs, netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}))
		}
		s.SetService(web)
	}
	require.NoError(t, s.Sync(t.Context()))
	for _, a := range []string{"198.51.100.1", "10.3.1.2"} {
		before := s.outside.looked
		host, opened = addresses(0, "192.0.2.1", a), nil
		require.NoError(t, s.Sync(t.Context()))
		require.Less(t, s.outside.looked-before, 4*services+6*each, "%s; there are %d addresses", a, services*each)
	}
	require.Equal(t, []string{"10.3.1.2:32003"}, opened)
}

// BenchmarkVIPsOfTheHost has an address of the host come or go, on a node with many services and their VIPs, of which
// the host has none.
func BenchmarkVIPsOfTheHost(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		for _, change := range []bool{false, true} {
			b.Run(fmt.Sprintf("services=%d/change=%v", n, change), func(b *testing.B) {
				host := addresses(0, "192.0.2.1")
				s := NewServices(nil, ServicesOptions{
					Addresses:     func() nodeaddr.Addresses { return addresses(0, "192.0.2.1") },
					HostAddresses: func() nodeaddr.Addresses { return host },
					Listen:        func(context.Context, string, string) (net.Listener, error) { return newIdleListener(), nil },
				})
				defer s.Close()
				for i := range n {
					web := service(fmt.Sprint("web-", i), uint16(20000+i), 1, -1)
					web.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})}
					s.SetService(web)
				}
				require.NoError(b, s.Sync(b.Context()))
				for i := 0; b.Loop(); i++ {
					if change {
						host = addresses(0, "192.0.2.1", fmt.Sprint("198.51.100.", i%256))
					}
					require.NoError(b, s.Sync(b.Context()))
				}
			})
		}
	}
}
