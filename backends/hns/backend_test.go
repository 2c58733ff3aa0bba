package hns

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The state of HNS, in a golden file for people to read.
func TestEveryFeature(t *testing.T) {
	m := newMachine(t)
	m.addPod("10.244.1.53")
	m.addPod("10.244.1.8")
	b := m.start(t)
	backendtest.Set(t, b, backendtest.EveryFeature()...)
	_ = b.Sync(t.Context()) // not every pod has an endpoint
	fm.Golden(t, "testdata/every-feature.hns", m.hns.Dump())
}

func TestOverlayNetworks(t *testing.T) {
	m := newOverlay(t)
	b := m.start(t, overlay)
	put(t, b, web()...)
	put(t, b,
		fm.Service("default/outside").ClusterIP("10.96.0.20").Port("http", 80).Build(),
		fm.Endpoint("default/outside:http/TCP", "203.0.113.80:80").Build(),
		fm.Service("default/nodes").ClusterIP("10.96.0.30").Port("http", 80).Build(),
		fm.Endpoint("default/nodes:http/TCP", "192.0.2.20:9100").Build())
	fm.Golden(t, "testdata/overlay.hns", m.hns.Dump())
}

func TestASecondSyncWithoutNewsCallsNothing(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.hns.TakeCalls()
	require.NoError(t, b.Sync(t.Context()))
	calls := m.hns.TakeCalls()
	require.Empty(t, calls.Writes)
	require.Empty(t, calls.Reads)
}

func TestRestartWithNothingChangedWritesNothing(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			change := []func(*Options){overlay}
			put(t, m.start(t, change...), web()...)
			before := m.hns.Dump()
			b := m.start(t, change...)
			put(t, b, web()...)
			require.Empty(t, m.writes())
			require.Equal(t, before, m.hns.Dump())
			b.ForceResync()
			require.NoError(t, b.Sync(t.Context()))
			require.Empty(t, m.writes(), "a full resync")
		})
	}
}

// One endpoint that is replaced is a constant number of calls, whatever the size of the cluster.
func TestAReplacedEndpointCostsTheSameInEveryCluster(t *testing.T) {
	for _, size := range backendtest.Sizes(10, 100, 10_000) {
		t.Run(size.String(), func(t *testing.T) {
			m := newMachine(t)
			m.hns.UniqueAddresses = false // the fake looks at all others
			for i := 0; i < size.Services; i += 100 {
				m.addPod(size.Endpoint(i, 0).Target.Addr().String())
			}
			b := m.start(t)
			size.Set(b)
			require.NoError(t, b.Sync(t.Context()))
			m.hns.TakeCalls()
			for n := range 4 {
				size.ReplaceEndpoint(b, n)
				require.NoError(t, b.Sync(t.Context()))
				calls := m.hns.TakeCalls()
				require.Len(t, calls.Writes, 3, "an endpoint, the load balancer, the old endpoint: %v", calls.Writes)
				require.Equal(t, []string{"Network"}, calls.Reads)
			}
			b = m.start(t)
			size.Set(b)
			require.NoError(t, b.Sync(t.Context()))
			require.Empty(t, m.writes(), "a restart")
		})
	}
}

func TestANewLocalPodCostsOneListing(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.addPod("10.244.1.9")
	m.hns.TakeCalls()
	put(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").Local().Build())
	calls := m.hns.TakeCalls()
	require.Equal(t, []string{"Network", "Endpoints"}, calls.Reads)
	require.Equal(t, []string{"update load balancer 10.96.0.10:80/TCP"}, calls.Writes)
}

func TestCleanUpLeavesOnlyObjectsOfOthers(t *testing.T) {
	for name, newMachine := range map[string]func(testing.TB) *machine{"L2Bridge": newMachine, "overlay": newOverlay} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			before := m.hns.Dump()
			b := m.start(t, overlay)
			put(t, b, web()...)
			require.NotEqual(t, before, m.hns.Dump())
			applied := m.hns.Dump()
			require.NoError(t, b.CleanUp(t.Context()))
			require.Equal(t, before, m.hns.Dump())
			require.NoError(t, b.Sync(t.Context()))
			require.Equal(t, applied, m.hns.Dump(), "a later Sync applies everything again")

			require.NoError(t, b.Close())
			require.NoError(t, CleanUp(t.Context(),
				Options{Network: network, RecordFile: m.record, Dataplane: m.hns}))
			require.Equal(t, before, m.hns.Dump(), "without a running backend")
			require.NoError(t, CleanUp(t.Context(),
				Options{Network: "none", RecordFile: m.record, Dataplane: m.hns}))
		})
	}
}
