package hns

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// machine is everything that a backend changes.
type machine struct {
	hns    *dp.Fake
	record string
	last   *Backend // that was started
}

const network = "cbr0"

// newMachine returns a machine with an L2Bridge network and two local pods.
func newMachine(t testing.TB) *machine {
	m := &machine{hns: dp.NewFake(), record: filepath.Join(t.TempDir(), "frontends")}
	m.hns.UniqueAddresses = true
	m.hns.SetNetwork(dp.Network{Name: network, Type: "L2Bridge"}, false)
	m.addPod("10.244.1.5", "fd00:244:1::5")
	m.addPod("10.244.1.6", "fd00:244:1::6")
	return m
}

// newOverlay returns a machine with an overlay network, another node in it, and two local pods.
func newOverlay(t testing.TB) *machine {
	m := newMachine(t)
	m.hns.DeleteNetwork(network)
	m.hns.SetNetwork(dp.Network{Name: network, Type: "Overlay", RemoteSubnets: []dp.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("192.0.2.20")},
	}}, false)
	m.addPod("10.244.1.5")
	m.addPod("10.244.1.6")
	return m
}

// addPod adds the endpoint of a local pod, as its CNI plugin does.
func (m *machine) addPod(ips ...string) string {
	e := dp.Endpoint{MAC: "00-15-5d-00-00-01"}
	for _, ip := range ips {
		e.IPs = append(e.IPs, netip.MustParseAddr(ip))
	}
	return m.hns.AddEndpoint(network, e)
}

// start starts a backend, as after a restart of the process if there was one before: that one has ended. It checks for
// changes of others when the test says so.
func (m *machine) start(t testing.TB, change ...func(*Options)) *Backend {
	t.Helper()
	if m.last != nil {
		require.NoError(t, m.last.Close())
	}
	o := Options{Network: network, RecordFile: m.record, Dataplane: m.hns, checkInterval: -1,
		hostMAC: func(netip.Addr) (string, error) { return "00-15-5d-00-00-aa", nil }}
	for _, c := range change {
		c(&o)
	}
	b, err := New(context.Background(), o)
	require.NoError(t, err)
	m.last = b
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	m.hns.TakeCalls()
	return b
}

// overlay sets the options that an overlay network needs.
func overlay(o *Options) { o.SourceVIP = netip.MustParseAddr("10.244.1.2") }

// put describes values and applies them.
func put(t testing.TB, b *Backend, values ...any) {
	t.Helper()
	backendtest.Set(t, b, values...)
	require.NoError(t, b.Sync(t.Context()))
}

// web is a service with a local endpoint and one elsewhere.
func web() []any {
	return []any{backendtest.Node(),
		fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Local().Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build()}
}

const webPort = "default/web:http/TCP"

func webKey() dp.Key {
	return dp.Key{Family: model.IPv4, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: model.TCP}
}

// writes returns the calls since the last time that changed something.
func (m *machine) writes() []string { return m.hns.TakeCalls().Writes }

// repair checks for what others have changed, and returns whether there was something.
func (b *Backend) repair(t testing.TB) (repaired bool) {
	t.Helper()
	for _, f := range b.families {
		result, err := f.check(t.Context(), nil)
		require.NoError(t, err)
		repaired = repaired || result.Repaired
	}
	return repaired
}

func endpointKey(target string) model.EndpointKey { return fm.Endpoint(webPort, target).Build().Key() }
