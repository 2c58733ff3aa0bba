package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// passes returns how often the table was passed over for each family since the last call of it.
func passesOf(table *fakeTable) func() [2]int {
	var last [2]int
	return func() [2]int {
		now := [2]int{table.passesOf(model.IPv4), table.passesOf(model.IPv6)}
		since := [2]int{now[0] - last[0], now[1] - last[1]}
		last = now
		return since
	}
}

func TestAPassIsDueOnlyWhenUDPFlowsMayBeStale(t *testing.T) {
	f := model.IPv4
	udp := all.with(endpoint{host: 1}, endpoint{host: 2})
	tcp := spec{name: "web", ip: otherIP, port: 80, protocol: model.TCP, endpoints: []endpoint{{host: 1}}}
	start := []*sink.ServiceEntry{udp.entry(t, f), tcp.entry(t, f)}
	entries := func(specs ...spec) (list []*sink.ServiceEntry) {
		for _, s := range specs {
			list = append(list, s.entry(t, f))
		}
		return list
	}
	for _, test := range []struct {
		name  string
		after []*sink.ServiceEntry
		due   bool
	}{
		{"nothing changes", start, false},
		{"a TCP service changes", entries(udp, tcp.with(endpoint{host: 2})), false},
		{"a TCP service goes", entries(udp), false},
		{"an endpoint leaves the sets and still serves",
			entries(all.with(endpoint{host: 1, goes: true, noSet: true}, endpoint{host: 2}), tcp), false},
		{"an endpoint comes", entries(all.with(endpoint{host: 1}, endpoint{host: 2}, endpoint{host: 3}), tcp), false},
		{"an endpoint goes", entries(all.with(endpoint{host: 1}), tcp), true},
		{"an endpoint stops to serve", entries(all.with(endpoint{host: 1},
			endpoint{host: 2, notServing: true, noSet: true}), tcp), true},
		{"a UDP service goes", entries(tcp), true},
		{"a UDP service comes", entries(udp, tcp, spec{name: "more", ip: nodeIP}), true},
		{"a node port goes", entries(spec{external: externalIP, lb: loadBalancer}.with(udp.endpoints...), tcp), true},
		{"a VIP goes", entries(spec{external: externalIP, nodePort: 30053}.with(udp.endpoints...), tcp), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := &fakeTable{}
			since := passesOf(table)
			r := wrap(t, table)
			describe(r, nil, start)
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			require.Equal(t, [2]int{1, 1}, since(), "one full pass at the first state")

			describe(r, start, test.after)
			require.Equal(t, [2]int{}, since(), "nothing happens before Sync")
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
			want := [2]int{}
			if test.due {
				want[0] = 1
			}
			require.Equal(t, want, since())
		})
	}
}

func TestChangesThatRevertBeforeTheSyncAreNone(t *testing.T) {
	table := &fakeTable{}
	since := passesOf(table)
	r := wrap(t, table, model.IPv4)
	start := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, model.IPv4)}
	describe(r, nil, start)
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{1, 0}, since(), "only the families that are asked for")
	describe(r, start, nil)
	describe(r, nil, start)
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{}, since())
}

func TestNothingIsDeletedBeforeItIsInForce(t *testing.T) {
	f := model.IPv4
	table, next := &fakeTable{}, &sink.Recorder{}
	since := passesOf(table)
	r := Wrap(t.Context(), next, Options{Table: table})
	toOne := flowTo(f, 4000, netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPortFrom(host(f, 1), 5353))
	table.Add(toOne)

	one := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)}
	two := []*sink.ServiceEntry{all.with(endpoint{host: 2}).entry(t, f)}
	r.SetNode(&model.Node{Name: "node-1"})
	describe(r, nil, one)
	next.FailNext(errors.New("not applied"))
	require.Error(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{}, since(), "the first Sync failed")
	r.ForceResync()
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{1, 1}, since())

	describe(r, one, two)
	next.FailNext(errors.New("not applied"), &sink.FamilyError{Family: model.IPv6, Err: errors.New("not applied")})
	require.Error(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{}, since())
	require.Len(t, table.Flows(), 1)

	// IPv4 is applied now, IPv6 still is not.
	r.ForceResync()
	require.Error(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{1, 0}, since())
	require.Empty(t, table.Flows())

	r.ForceResync()
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{1, 1}, since(), "a resync passes over everything")
	require.Empty(t, next.Violations(), "everything is passed on, in order")
	r.ForceResync()
	next.FailNext(errors.New("not applied"))
	require.Error(t, r.Sync(t.Context()))
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{1, 1}, since(), "also when it comes later")
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{}, since())
	require.NotNil(t, next.Node())
}

// A service port, or a family, that is not applied does not hold up the rest, nor lead to passes over it.
func TestAFailureConcernsItsFamilyAlone(t *testing.T) {
	table, next := &fakeTable{}, &sink.Recorder{}
	since := passesOf(table)
	r := Wrap(t.Context(), next, Options{Table: table})
	r.SetNode(&model.Node{Name: "node-1"})
	sync := func(err error) [2]int {
		next.FailNext(err)
		require.Equal(t, err, r.Sync(t.Context()))
		r.Wait()
		return since()
	}
	port := &sink.PortError{Family: model.IPv4, Err: errors.New("refused")}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: errors.New("not applied")}
	require.Equal(t, [2]int{1, 1}, sync(port), "the first state is applied, but for a service port")
	r.ForceResync()
	require.Equal(t, [2]int{1, 0}, sync(v6))
	r.SetService(&model.Service{Name: model.ServiceName{Name: "a"}})
	require.Equal(t, [2]int{}, sync(v6), "the pass that was asked for is done")
	r.ResyncFailed()
	require.Equal(t, [2]int{}, sync(v6))
	r.ResyncFailed()
	require.Equal(t, [2]int{0, 1}, sync(nil))
	r.ResyncFailed()
	require.Equal(t, [2]int{}, sync(nil), "nothing has failed")
	require.Empty(t, next.Violations())
}

// Until a pass is complete, nothing that it was to do is forgotten.
func TestRemovedServicesAreRememberedUntilAPassSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := model.IPv4
		table := &fakeTable{}
		r := wrap(t, table)
		start := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)}
		describe(r, nil, start)
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		time.Sleep(maxPause)
		// The second flow is in the half of the table that a pass which fails does not reach.
		dns, node := netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPortFrom(host(f, nodeIP), 30053)
		table.Add(flowTo(f, 4000, dns, netip.AddrPortFrom(host(f, 1), 5353)),
			flowTo(f, 4001, node, netip.AddrPortFrom(host(f, 1), 5353)))
		describe(r, start, nil)
		begin := time.Now()
		table.FailNext(errors.New("no memory"), errors.New("no memory"), errors.New("no memory"))
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Empty(t, table.Flows())
		require.Equal(t, 7*time.Second, time.Since(begin), "pauses of 1, 2 and 4 s")
		require.Equal(t, 1+4, table.passesOf(f))

		// From now on these addresses are anybody's.
		table.Add(flowTo(f, 4000, dns, netip.AddrPortFrom(host(f, 1), 5353)))
		r.ForceResync()
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Len(t, table.Flows(), 1)
	})
}

func TestAnInterruptedPassIsTriedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := model.IPv6
		table := &fakeTable{}
		for i := range 8 {
			table.Add(flowTo(f, uint16(4000+i), netip.AddrPortFrom(host(f, clusterIP), 53),
				netip.AddrPortFrom(host(f, 1), 53)))
		}
		r := wrap(t, table, f)
		describe(r, nil, []*sink.ServiceEntry{all.entry(t, f)})
		table.FailNext(ErrInterrupted, ErrInterrupted, ErrInterrupted, ErrInterrupted)
		begin := time.Now()
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Empty(t, table.Flows())
		require.Equal(t, 5, table.passesOf(f))
		require.Zero(t, time.Since(begin))

		table.FailNext(ErrInterrupted, ErrInterrupted, ErrInterrupted, ErrInterrupted, ErrInterrupted)
		_, err := pass(t.Context(), table, f, nil, func(Flow) bool { return true })
		require.ErrorIs(t, err, ErrInterrupted)
		require.ErrorContains(t, err, "IPv6")
	})
}

func TestWhereThereIsNoTableItIsTriedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{}
		table.FailNext(fmt.Errorf("conntrack: %w", errors.ErrUnsupported))
		r := wrap(t, table, model.IPv4)
		for range 3 {
			r.ForceResync()
			require.NoError(t, r.Sync(t.Context()))
			r.Wait()
		}
		require.Equal(t, 1, table.passesOf(model.IPv4))
		for i := range 100 { // services come and go
			entry := []*sink.ServiceEntry{spec{ip: 10 + i}.with(endpoint{host: 1}).entry(t, model.IPv4)}
			describe(r, nil, entry)
			require.NoError(t, r.Sync(t.Context()))
			describe(r, entry, nil)
			require.NoError(t, r.Sync(t.Context()))
		}
		require.Nil(t, r.families[0].index, "nothing is remembered of what is gone")
		require.Empty(t, r.families[0].services)
		require.Empty(t, r.families[0].endpoints)
		require.Empty(t, r.services)
		require.Empty(t, r.serving)
	})
}

func TestTheWorkerEndsWithTheContextOfWrapAndNotOfSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := model.IPv4
		table := &fakeTable{}
		ctx, cancel := context.WithCancel(t.Context())
		r := Wrap(ctx, nil, Options{Table: table, Families: []model.Family{f}})
		describe(r, nil, []*sink.ServiceEntry{all.entry(t, f)})
		stale := flowTo(f, 4000, netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPort{})
		table.Add(stale)
		table.FailNext(errors.New("no memory"))
		syncCtx, endSync := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, r.Sync(syncCtx))
		endSync() // as whoever bounds the time of a Sync does
		r.Wait()
		require.Equal(t, 2, table.passesOf(f), "one that failed, and another one")
		require.Empty(t, table.Flows())

		time.Sleep(maxPause)
		table.Add(stale)
		table.FailNext(errors.New("no memory"))
		r.ForceResync()
		require.NoError(t, r.Sync(t.Context()))
		synctest.Wait() // it has failed and sleeps
		cancel()
		r.Wait()
		require.NoError(t, r.Sync(t.Context()))
		r.Wait()
		require.Equal(t, 3, table.passesOf(f), "no pass after the end")
	})
}

// blockingTable blocks in a pass until it is let go.
type blockingTable struct {
	fakeTable
	entered, proceed chan struct{}
}

func (b *blockingTable) DeleteUDP(ctx context.Context, f model.Family, only []Selection,
	stale func(Flow) bool) (int, error) {
	b.entered <- struct{}{}
	<-b.proceed
	return b.fakeTable.DeleteUDP(ctx, f, only, stale)
}

func TestSyncDoesNotWaitForAPassAndPassesDoNotOverlap(t *testing.T) {
	f := model.IPv4
	table := &blockingTable{entered: make(chan struct{}), proceed: make(chan struct{})}
	r := wrap(t, table, f)
	one := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)}
	two := []*sink.ServiceEntry{all.with(endpoint{host: 2}).entry(t, f)}
	dns := netip.AddrPortFrom(host(f, clusterIP), 53)
	toOne := flowTo(f, 4000, dns, netip.AddrPortFrom(host(f, 1), 5353))
	toTwo := flowTo(f, 4001, dns, netip.AddrPortFrom(host(f, 2), 5353))
	table.Add(toOne, toTwo)

	describe(r, nil, one)
	require.NoError(t, r.Sync(t.Context()))
	<-table.entered // the first pass is under way
	describe(r, one, two)
	require.NoError(t, r.Sync(t.Context()))
	describe(r, two, one)
	describe(r, one, two)
	require.NoError(t, r.Sync(t.Context()))
	table.proceed <- struct{}{}
	<-table.entered // one more, for all that came meanwhile
	table.proceed <- struct{}{}
	r.Wait()
	require.Equal(t, 2, table.passesOf(f))
	require.Equal(t, []Flow{toTwo}, table.Flows(), "it is judged by what is applied, not by what was when the pass "+
		"began")
}

func TestChangesDuringAPassAreLeftToTheNext(t *testing.T) {
	f := model.IPv4
	table := &blockingTable{entered: make(chan struct{}), proceed: make(chan struct{})}
	r := wrap(t, table, f)
	start := []*sink.ServiceEntry{all.with(endpoint{host: 1}).entry(t, f)}
	describe(r, nil, start)
	require.NoError(t, r.Sync(t.Context()))
	<-table.entered
	describe(r, start, nil)
	require.NoError(t, r.Sync(t.Context()))
	table.proceed <- struct{}{}
	<-table.entered
	table.Add(flowTo(f, 4000, netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPortFrom(host(f, 1), 5353)))
	table.proceed <- struct{}{}
	r.Wait()
	require.Empty(t, table.Flows())
}

func TestEachFamilyHasItsOwnPasses(t *testing.T) {
	both := all.with(endpoint{host: 1}).entry(t, model.IPv4).Service
	dual := *both
	dual.ClusterIPs = []netip.Addr{host(model.IPv4, clusterIP), host(model.IPv6, clusterIP)}
	dual.LoadBalancerIPs = []netip.Addr{host(model.IPv4, loadBalancer), host(model.IPv6, loadBalancer)}
	less := dual
	less.LoadBalancerIPs = dual.LoadBalancerIPs[:1]

	table := &fakeTable{}
	since := passesOf(table)
	r := wrap(t, table)
	r.SetService(&dual)
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	since()
	r.SetService(&less) // loses an IPv6 address
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.Equal(t, [2]int{0, 1}, since())

	for _, f := range model.Families() {
		table.Add(flowTo(f, 4000, netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPort{}))
	}
	deleted, err := table.DeleteUDP(t.Context(), model.IPv4, nil, func(Flow) bool { return true })
	require.NoError(t, err)
	require.Equal(t, 1, deleted, "of that family")
}

func TestMetricsHaveKubeProxysNames(t *testing.T) {
	f := model.IPv6
	table := &fakeTable{}
	for i := range 3 {
		table.Add(flowTo(f, uint16(4000+i), netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPort{}))
	}
	r := wrap(t, table)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(r))
	describe(r, nil, []*sink.ServiceEntry{all.entry(t, f)})
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_conntrack_reconciler_deleted_entries_total Stale flows deleted from the conntrack table
# TYPE kubeproxy_conntrack_reconciler_deleted_entries_total counter
kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0
kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 3
`), "kubeproxy_conntrack_reconciler_deleted_entries_total"))
	n, err := testutil.GatherAndCount(registry, "kubeproxy_conntrack_reconciler_sync_duration_seconds")
	require.NoError(t, err)
	require.Equal(t, 2, n, "a histogram for each family")
}

func TestBadCallsDoNoHarm(t *testing.T) {
	table := &fakeTable{}
	r := wrap(t, table)
	r.SetService(nil)
	r.SetEndpoint(nil)
	r.DeleteService(model.ServiceName{Namespace: "no", Name: "such"})
	r.DeleteEndpoint(model.EndpointKey{})
	require.NoError(t, r.Sync(t.Context()))
	r.Wait()
}
