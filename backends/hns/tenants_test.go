package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

const evilPort = "evil/thief:http/TCP"

// thief is a service of another namespace with an endpoint of its author's choice, and one of its own.
func thief(target string) []any {
	return []any{fm.Service("evil/thief").ClusterIP("10.96.0.66").Port("http", 80).Build(),
		fm.Endpoint(evilPort, target).Build(), fm.Endpoint(evilPort, "10.244.2.66:80").Build()}
}

const vipOfWeb = "remote endpoint 10.96.0.10 00-15-5d-00-00-aa named kube-proxy-lib 10.96.0.10 at 192.0.2.10\n"

// In an overlay network the cluster IP of another service has an endpoint, which all its traffic needs.
func TestAnEndpointThatIsAClusterIPCostsItsOwnServiceAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		machine func(testing.TB) *machine
		order   func(t *testing.T, b *Backend)
	}{
		"the victim is older": {newOverlay, func(t *testing.T, b *Backend) {
			put(t, b, web()...)
			backendtest.Set(t, b, thief("10.96.0.10:80")...)
		}},
		"the thief is older": {newOverlay, func(t *testing.T, b *Backend) {
			put(t, b, append(thief("10.96.0.10:80"), backendtest.Node())...)
			backendtest.Set(t, b, web()...)
		}},
		"together": {newOverlay, func(t *testing.T, b *Backend) {
			backendtest.Set(t, b, append(web(), thief("10.96.0.10:80")...)...)
		}},
		"on L2Bridge": {newMachine, func(t *testing.T, b *Backend) {
			backendtest.Set(t, b, append(web(), thief("10.96.0.10:80")...)...)
		}},
	} {
		for _, unique := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", unique ", unique), func(t *testing.T) {
				m := tc.machine(t)
				m.hns.UniqueAddresses = unique
				b := m.start(t, overlay)
				tc.order(t, b)
				check := func(err error) {
					t.Helper()
					failsOnly(t, err, evilPort)
					require.ErrorContains(t, err, "endpoint 10.96.0.10 is the cluster IP of a service")
					vips := 0
					if b.families[model.IPv4].isOverlay() {
						vips = 1
					}
					require.Equal(t, vips, strings.Count(m.hns.Dump(), vipOfWeb))
					require.Equal(t, vips, strings.Count(m.hns.Dump(), "endpoint 10.96.0.10 "), m.hns.Dump())
					require.Contains(t, m.balancers(), "10.96.0.66:80/TCP -> 80 of 10.244.2.66")
				}
				check(b.Sync(t.Context()))
				b.ResyncFailed()
				check(b.Sync(t.Context()))
				b.ForceResync()
				check(b.Sync(t.Context()))
				require.False(t, b.repair(t))
				m.writes()
				b.ForceResync()
				check(b.Sync(t.Context()))
				require.Empty(t, m.writes())

				b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
				_ = b.Sync(t.Context())
				b.ResyncFailed()
				require.NoError(t, b.Sync(t.Context()), "the address is free")
				require.Contains(t, m.balancers(), "10.96.0.66:80/TCP -> 80 of 10.244.2.66, 10.96.0.10")
			})
		}
	}
}

func TestAnEndpointThatIsTheSourceVIPIsRefused(t *testing.T) {
	m := newOverlay(t)
	b := m.start(t, overlay)
	backendtest.Set(t, b, append(web(), thief("10.244.1.2:80")...)...)
	err := b.Sync(t.Context())
	failsOnly(t, err, evilPort)
	require.ErrorContains(t, err, "endpoint 10.244.1.2 is the source VIP of this node")
}

// If the host's interfaces cannot be read, the endpoint of a cluster IP is not deleted.
func TestAVIPEndpointStaysWhenItCannotBeChecked(t *testing.T) {
	m := newOverlay(t)
	fails := false
	b := m.start(t, overlay, func(o *Options) {
		o.hostMAC = func(netip.Addr) (string, error) {
			if fails {
				return "", errors.New("no interfaces")
			}
			return "00-15-5d-00-00-aa", nil
		}
	})
	put(t, b, web()...)
	fails = true
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Contains(t, m.hns.Dump(), vipOfWeb)
}

func TestAnEndpointOfAnUnknownNodeMayBeALocalPod(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()[:2]...)
	local := m.addPod("10.244.1.9")
	put(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").Build())
	list, err := m.hns.LoadBalancers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{local}, list[0].Endpoints)
	require.NotContains(t, m.hns.Dump(), "remote endpoint 10.244.1.9")
}

// The pod's endpoint may come after the EndpointSlice.
func TestAnEndpointOfAnUnknownNodeThatBecomesALocalPodIsFollowed(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, append(web()[:2], fm.Endpoint(webPort, "10.244.1.9:8080").Build())...)
	require.Contains(t, m.hns.Dump(), "remote endpoint 10.244.1.9")
	m.addPod("10.244.1.9")
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.NotContains(t, m.hns.Dump(), "remote endpoint 10.244.1.9")
	require.Contains(t, m.hns.Dump(), "local endpoint 10.244.1.9")
	require.Contains(t, m.balancers(), "8080 of 10.244.1.9\n")
}

// kube-proxy gives its endpoints no name.
func TestRemoteEndpointsOfKubeProxyAreAdoptedAndCorrected(t *testing.T) {
	m := newOverlay(t)
	before := m.hns.Dump()
	for ip, provider := range map[string]string{"10.244.2.5": "192.0.2.99", "10.244.2.6": "192.0.2.20",
		"10.96.0.10": "192.0.2.99", "10.244.1.2": "192.0.2.20"} {
		addr := netip.MustParseAddr(ip)
		m.hns.AddEndpoint(network, dp.Endpoint{Remote: true, IPs: []netip.Addr{addr},
			MAC: strings.ToUpper(remoteMAC(addr)), Provider: netip.MustParseAddr(provider)})
	}
	b := m.start(t, overlay)
	put(t, b, web()...)
	require.NotContains(t, m.hns.Dump(), "192.0.2.99")
	require.NotContains(t, m.hns.Dump(), "endpoint 10.244.2.6", "nothing uses it")
	require.Contains(t, m.hns.Dump(), vipOfWeb)
	require.Equal(t, 1, strings.Count(m.hns.Dump(), "endpoint 10.244.1.2 "))
	fresh := newOverlay(t)
	put(t, fresh.start(t, overlay), web()...)
	require.Equal(t, fresh.hns.Dump(), m.hns.Dump())
	require.NoError(t, b.CleanUp(t.Context()))
	require.Equal(t, before, m.hns.Dump())
}

// normalise makes a machine's HNS change what it is asked for.
func (m *machine) normalise(late bool) *machine {
	m.hns.Normalise = func(lb *dp.LoadBalancer) {
		lb.PortFlags |= 1 << 8
		if !lb.SourceVIP.IsValid() {
			lb.SourceVIP = netip.MustParseAddr("192.0.2.10")
		}
	}
	m.hns.NormaliseEndpoint = func(e *dp.Endpoint) {
		e.MAC = "00-15-5d-ff-ff-ff"
		if !e.Provider.IsValid() {
			e.Provider = netip.MustParseAddr("192.0.2.10")
		}
	}
	m.hns.NormaliseLate = late
	return m
}

func TestWhatHNSMakesOfALoadBalancerIsNotRepaired(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", late ", late), func(t *testing.T) {
				m := newMachine(t).normalise(late)
				b := m.start(t, overlay)
				put(t, b, append(web(), api()...)...)
				repairs := 0
				lines := logged(t, func(ctx context.Context) {
					for range 10 {
						result, err := b.families[model.IPv4].check(ctx, nil)
						require.NoError(t, err)
						if result.Repaired {
							repairs++
						}
					}
				})
				said := 0
				for _, line := range lines {
					if strings.Contains(line, "HNS does not accept the settings of a load balancer; no longer repairing it") {
						said++
					}
				}
				if late {
					require.Equal(t, maxRepairs, repairs)
					require.NotZero(t, said)
				} else {
					require.Zero(t, repairs)
					require.Empty(t, lines)
				}
				m.writes()
				b.ForceResync()
				require.NoError(t, b.Sync(t.Context()))
				require.Empty(t, m.writes(), "a full resync")

				put(t, b, fm.Endpoint(webPort, "10.244.2.7:8080").Build())
				require.Equal(t, []string{"create endpoint 10.244.2.7", "update load balancer 10.96.0.10:80/TCP"}, m.writes())
				put(t, b, fm.Service("default/third").ClusterIP("10.96.0.12").Port("http", 80).Build(),
					fm.Endpoint("default/third:http/TCP", "10.244.2.7:80").Build())
				m.writes()
				require.False(t, b.repair(t), "it is known of new ones")
				require.Empty(t, m.writes())
			})
		}
	}
}

// At most one load balancer of each kind, and one endpoint, is replaced to find out what HNS makes of it.
func TestARestartWithAnHNSThatNormalisesReplacesLittle(t *testing.T) {
	m := newOverlay(t).normalise(false)
	values := append(many(50), web()...)
	put(t, m.start(t, overlay), values...)
	b := m.start(t, overlay)
	put(t, b, values...)
	require.LessOrEqual(t, len(m.writes()), 8)
	put(t, b, values...)
	require.Empty(t, m.writes())
}

// A load balancer that another program has stripped of its settings is repaired.
func TestALoadBalancerWithoutItsSettingsIsRepaired(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, append(web(), fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("203.0.113.1").
		Port("http", 80).Build())...)
	want := m.hns.Dump()
	list, err := m.hns.LoadBalancers(t.Context())
	require.NoError(t, err)
	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	for _, lb := range list {
		m.hns.AddLoadBalancer(*settings{}.of(lb))
	}
	require.NotEqual(t, want, m.hns.Dump())
	require.True(t, b.repair(t))
	require.Equal(t, want, m.hns.Dump())
}

// Changes of a load balancer by another program that differ each time are repaired each time.
func TestChangesOfOthersAreRepairedHoweverOften(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	want := m.hns.Dump()
	for i := range 10 {
		m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
		if i%2 == 0 {
			pod := m.addPod(fmt.Sprint("10.244.1.", 100+i))
			m.hns.AddLoadBalancer(dp.LoadBalancer{Key: webKey(), TargetPort: 8080, Endpoints: []string{pod}})
		}
		require.True(t, b.repair(t))
		for i := range 10 {
			m.hns.RemoveEndpoint(netip.MustParseAddr(fmt.Sprint("10.244.1.", 100+i)))
		}
		require.Equal(t, want, m.hns.Dump())
	}
}

// A listing that fails says nothing about the endpoints of a service.
func TestAFailedListingDeletesNothing(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			b := m.start(t, overlay)
			put(t, b, web()...)
			b.DeleteEndpoint(endpointKey("10.244.1.5:8080"))
			b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
			backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").Local().Build())
			before := m.hns.Dump()
			m.hns.SetFailRead(func(method string) error {
				if method == "Endpoints" {
					return errors.New("the service is busy")
				}
				return nil
			})
			err := b.Sync(t.Context())
			require.ErrorContains(t, err, "the service is busy")
			require.True(t, sink.FailedFamilies(err).Has(model.IPv4))
			require.Equal(t, before, m.hns.Dump())
		})
	}
}

func TestAHealthCheckStaysWhenTheEndpointOfTheNodeCannotBeRead(t *testing.T) {
	m := newMachine(t)
	m.hns.AddEndpoint(network, dp.Endpoint{Name: "root", IPs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	b := m.start(t, func(o *Options) { o.RootEndpoint, o.HealthzPort = "root", 10256 })
	put(t, b, wide()...)
	before := m.balancers()
	m.hns.SetFailRead(func(method string) error {
		if method == "EndpointByName" {
			return errors.New("the service is busy")
		}
		return nil
	})
	b.ForceResync()
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Equal(t, before, m.balancers())
}

func TestAMalformedRemoteSubnetIsLoggedOnce(t *testing.T) {
	m := newOverlay(t)
	n, err := m.hns.Network(t.Context(), network)
	require.NoError(t, err)
	n.Malformed = []string{`invalid prefix "hello"`}
	m.hns.SetNetwork(n, false)
	b := m.start(t, overlay, func(o *Options) { o.Families = []model.Family{model.IPv4} })
	backendtest.Set(t, b, web()...)
	lines := logged(t, func(ctx context.Context) {
		for range 3 {
			require.NoError(t, b.Sync(ctx))
			b.ForceResync()
		}
	})
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "Ignoring malformed remote subnets of the HNS network")
	require.Contains(t, m.hns.Dump(), "10.244.2.5 at 192.0.2.20", "the others are used")
}

// A service that is deleted after a Sync that failed before it applied anything does not come back.
func TestAServiceThatIsDeletedAfterAFailedSyncIsForgotten(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, backendtest.Node())
	m.stop(0)
	backendtest.Set(t, b, many(1)...)
	isOutage(t, b.Sync(t.Context()))
	m.startAgain()
	backendtest.Set(t, b, web()...)
	m.hns.SetFailRead(func(method string) error {
		if method == "LoadBalancers" {
			return errors.New("the service is busy")
		}
		return nil
	})
	require.Error(t, b.Sync(t.Context()))
	m.hns.SetFailRead(nil)
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	b.DeleteEndpoint(endpointKey("10.244.1.5:8080"))
	b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, "load balancer 10.96.1.0:80/TCP -> 80 of 10.244.3.0\n", m.balancers())
}

// The network may be recreated before any call.
func TestANetworkThatIsRecreatedInTheMiddleIsFilledAgain(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		t.Run(name, func(t *testing.T) {
			fresh := newMachine(t)
			put(t, fresh.start(t, overlay), append(web(), many(5)...)...)
			for at, reached := 1, true; reached; at++ {
				reached = false
				m := newMachine(t)
				b := m.start(t, overlay)
				put(t, b, web()...)
				backendtest.Set(t, b, many(5)...)
				calls := 0
				renew := func(string) error {
					if calls++; calls == at {
						reached = true
						m.hns.Unlock()
						defer m.hns.Lock()
						n, err := m.hns.Network(context.Background(), network)
						require.NoError(t, err)
						m.hns.SetNetwork(n, true)
						for ip, ip6 := range map[string]string{"10.244.1.5": "fd00:244:1::5", "10.244.1.6": "fd00:244:1::6"} {
							if name == "overlay" {
								m.addPod(ip)
							} else {
								m.addPod(ip, ip6)
							}
						}
					}
					return nil
				}
				m.hns.SetFail(renew)
				m.hns.SetFailRead(renew)
				_ = b.Sync(t.Context())
				m.startAgain()
				for range 3 {
					b.ResyncFailed()
					_ = b.Sync(t.Context())
					for _, f := range b.families {
						_, _ = f.check(t.Context(), nil)
					}
				}
				require.Equal(t, fresh.hns.Dump(), m.hns.Dump(), "before call %d", at)
			}
		})
	}
}

// As during an update of a DaemonSet.
func TestTwoBackendsDoNotDisturbEachOther(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			both := []*Backend{m.start(t, overlay), m.start(t, overlay)}
			for _, wave := range sweepWaves(t) {
				for _, b := range both {
					wave(b)
				}
				for range 3 {
					for _, b := range both {
						b.ResyncFailed()
						_ = b.Sync(t.Context())
						b.repair(t)
					}
				}
				m.writes()
				for _, b := range both {
					b.ForceResync()
					require.NoError(t, b.Sync(t.Context()))
					require.False(t, b.repair(t))
				}
				require.Empty(t, m.writes())
			}
		})
	}
}
