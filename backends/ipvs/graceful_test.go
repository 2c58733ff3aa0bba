package ipvs

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

var (
	pod1 = netip.MustParseAddrPort("10.244.1.5:8080")
	pod2 = netip.MustParseAddrPort("10.244.2.5:8080")
)

func web() []any {
	return []any{
		fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).UDPPort("udp", 80).Build(),
		fm.Endpoint("default/web:http/TCP", pod1.String()).Build(),
		fm.Endpoint("default/web:http/TCP", pod2.String()).Build(),
		fm.Endpoint("default/web:udp/UDP", pod1.String()).Build(),
		fm.Endpoint("default/web:udp/UDP", pod2.String()).Build(),
	}
}

func deletePod1(t *testing.T, b *Backend) {
	t.Helper()
	for _, p := range []struct {
		port     string
		protocol model.Protocol
	}{{"http", model.TCP}, {"udp", model.UDP}} {
		b.DeleteEndpoint(model.EndpointKey{Target: pod1, Port: model.PortName{Port: p.port, Protocol: p.protocol,
			Service: model.ServiceName{Namespace: "default", Name: "web"}}})
	}
	require.NoError(t, b.Sync(t.Context()))
}

func TestAnEndpointThatGoesKeepsItsTCPConnectionsAndNoOthers(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	deletePod1(t, b)
	require.Equal(t, `address 10.96.0.10
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 0
-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
-A -u 10.96.0.10:80 -s rr -b flag-3
-a -u 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
`, k.ipvs.Dump())

	tcp := key("10.96.0.10:80", model.TCP)
	k.ipvs.SetConnections(tcp, pod1, 0, 1)
	b.drain(t, model.IPv4)
	require.Contains(t, k.ipvs.Dump(), "-r 10.244.1.5:8080 -m -w 0", "it still has a connection that closes")
	k.ipvs.SetConnections(tcp, pod1, 0, 0)
	b.drain(t, model.IPv4)
	require.NotContains(t, k.ipvs.Dump(), "10.244.1.5")

	k.ipvs.TakeCalls()
	b.drain(t, model.IPv4)
	require.Empty(t, k.ipvs.TakeCalls(), "nothing drains any more")
}

func TestConnectionsToAnEndpointThatGoesAreNeverCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t, func(o *Options) { o.drainInterval = defaultDrainInterval })
		defer b.Close()
		put(t, b, web()...)
		deletePod1(t, b)
		tcp := key("10.96.0.10:80", model.TCP)
		k.ipvs.SetConnections(tcp, pod1, 3, 0)
		time.Sleep(24 * time.Hour)
		require.Contains(t, k.ipvs.Dump(), "-r 10.244.1.5:8080 -m -w 0")
		k.ipvs.SetConnections(tcp, pod1, 0, 0)
		time.Sleep(2 * defaultDrainInterval)
		require.NotContains(t, k.ipvs.Dump(), "10.244.1.5")
	})
}

func TestAnEndpointThatComesBackTakesNewConnections(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	before := k.ipvs.Dump()
	deletePod1(t, b)
	put(t, b, web()...)
	require.Equal(t, before, k.ipvs.Dump())
	b.drain(t, model.IPv4)
	require.Equal(t, before, k.ipvs.Dump())
}

func TestADrainingEndpointThatServesKeepsAllItsConnectionsForAsLongAsItTakes(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	put(t, b, fm.Endpoint("default/web:udp/UDP", pod1.String()).Sets(0).Build(),
		fm.Endpoint("default/web:http/TCP", pod1.String()).Sets(0).Build())
	b.drain(t, model.IPv4)
	require.Equal(t, `address 10.96.0.10
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 0
-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
-A -u 10.96.0.10:80 -s rr -b flag-3
-a -u 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 0
-a -u 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
`, k.ipvs.Dump())
	deletePod1(t, b)
	b.drain(t, model.IPv4)
	require.NotContains(t, k.ipvs.Dump(), "10.244.1.5")
}

func TestARestartGoesOnDraining(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	deletePod1(t, b)
	k.ipvs.SetConnections(key("10.96.0.10:80", model.TCP), pod1, 1, 0)

	b = k.start(t)
	now := web()
	put(t, b, now[0], now[2], now[4])
	require.Empty(t, k.ipvs.TakeCalls().Writes)
	b.drain(t, model.IPv4)
	require.Contains(t, k.ipvs.Dump(), "-r 10.244.1.5:8080 -m -w 0")
	k.ipvs.SetConnections(key("10.96.0.10:80", model.TCP), pod1, 0, 0)
	b.drain(t, model.IPv4)
	require.NotContains(t, k.ipvs.Dump(), "10.244.1.5")
}

func TestAServiceThatGoesKeepsItsEstablishedConnectionsAndRefusesNewOnes(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	tcp := key("10.96.0.10:80", model.TCP)
	k.ipvs.SetConnections(tcp, pod2, 1, 0)
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, `address 10.96.0.10
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 0
-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 0
`, k.ipvs.Dump())
	require.NotContains(t, k.table(model.IPv4), "10.96.0.10 . tcp . 80")
	require.Contains(t, k.table(model.IPv4), "elements = { 10.96.0.10 }", "the address is still guarded")

	k.ipvs.SetConnections(tcp, pod2, 0, 1)
	b.drain(t, model.IPv4)
	require.Empty(t, k.ipvs.Dump())
	require.NotContains(t, k.table(model.IPv4), "10.96.0.10")
}

func TestTheNewEndpointTakesConnectionsBeforeTheOldOneTakesNoMore(t *testing.T) {
	for _, pods := range [][2]string{{"10.244.1.5:8080", "10.244.2.5:8080"}, {"10.244.2.5:8080", "10.244.1.5:8080"}} {
		k := newKernel(t)
		b := k.start(t)
		before := fm.Endpoint("default/web:http/TCP", pods[0]).Build()
		put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(), before)
		k.ipvs.TakeCalls()
		b.DeleteEndpoint(before.Key())
		put(t, b, fm.Endpoint("default/web:http/TCP", pods[1]).Build())
		require.Equal(t, []string{"add endpoint " + pods[1] + " to 10.96.0.10:80/TCP",
			"change endpoint " + pods[0] + " of 10.96.0.10:80/TCP to weight 0"}, k.ipvs.TakeCalls().Writes)
	}
}

// failOn returns a hook for calls of the fake that fails those that begin with a text.
func failOn(prefix string, err error) func(string) error {
	return func(call string) error {
		if strings.HasPrefix(call, prefix) {
			return err
		}
		return nil
	}
}

func TestAnEndpointThatCannotBeDeletedDoesNotAffectOthers(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	other := []any{fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build(),
		fm.Endpoint("default/web:udp/UDP", "10.244.3.5:8080").Build()}
	put(t, b, other...)
	k.ipvs.SetFail(failOn("delete endpoint 10.244.1.5:8080 ", syscall.ENOMEM))
	for _, e := range append(web()[1:], other...) {
		if e, ok := e.(*model.Endpoint); ok && e.Target != pod2 {
			b.DeleteEndpoint(e.Key())
		}
	}
	require.ErrorIs(t, b.Sync(t.Context()), syscall.ENOMEM)
	require.NotContains(t, k.ipvs.Dump(), "-a -u 10.96.0.10:80 -r 10.244.3.5:8080", "UDP flows are not drained")
	require.Contains(t, k.ipvs.Dump(), "-a -t 10.96.0.10:80 -r 10.244.3.5:8080 -m -w 0")
	require.ErrorIs(t, b.tryToDrain(t, model.IPv4), syscall.ENOMEM)
	require.NotContains(t, k.ipvs.Dump(), "10.244.3.5")

	k.ipvs.SetFail(nil)
	b.ResyncFailed()
	put(t, b)
	b.drain(t, model.IPv4)
	require.NotContains(t, k.ipvs.Dump(), "10.244.1.5")
}

func TestARepairDoesNotWaitForAnEndpointThatCannotBeDeleted(t *testing.T) {
	k := newKernel(t)
	k.ipvs.SetFail(failOn("delete endpoint", syscall.ENOMEM))
	b := k.start(t, func(o *Options) { o.drainInterval = time.Microsecond })
	put(t, b, web()...)
	b.DeleteEndpoint(fm.Endpoint("default/web:http/TCP", pod1.String()).Build().Key())
	put(t, b)
	before := k.table(model.IPv4)
	table := nft.TableKey{Family: model.IPv4, Name: tableName}
	tx := nft.NewTransaction(table)
	tx.DeleteTable()
	require.NoError(t, k.nft.ApplyUnnoticed(tx))
	other := nft.NewTransaction(table)
	other.AddTable("")
	require.NoError(t, k.nft.ApplyAsSomebodyElse(other))
	require.Eventually(t, func() bool { return k.table(model.IPv4) == before }, time.Minute, time.Millisecond)
}
