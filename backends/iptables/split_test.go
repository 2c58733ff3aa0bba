package iptables_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// changesAtOnce checks that in each table, all changes that packets notice are in one transaction, however many
// transactions a batch has.
func changesAtOnce(t testing.TB, f model.Family, before string, batches []*dataplane.Batch) {
	t.Helper()
	fake := dataplane.NewFake(f)
	require.NoError(t, fake.Load(before))
	for _, b := range batches {
		have, changes := map[dataplane.Table]map[string][]string{}, map[dataplane.Table]int{}
		for _, table := range b.Tables {
			if have[table.Table] == nil {
				have[table.Table] = inForce(t, fake, table.Table)
			}
			require.NoError(t, fake.RestoreAsSomebodyElse(&dataplane.Batch{Tables: []dataplane.TableBatch{table}}))
			if now := inForce(t, fake, table.Table); !assert.ObjectsAreEqual(have[table.Table], now) {
				have[table.Table] = now
				changes[table.Table]++
			}
		}
		for table, n := range changes {
			require.LessOrEqual(t, n, 1, "table %s changes in %d transactions: %v", table, n, b)
		}
	}
}

// inForce returns the chains of a table that packets can reach, and the jumps of built-in chains.
func inForce(t testing.TB, fake *dataplane.Fake, table dataplane.Table) map[string][]string {
	t.Helper()
	state, err := fake.Read(t.Context(), table, "")
	require.NoError(t, err)
	reached := map[string][]string{}
	var reach func(rules []string)
	reach = func(rules []string) {
		for _, rule := range rules {
			to := dataplane.Target(rule)
			if _, done := reached[to]; !done && state.Chains[to] != nil {
				reached[to] = state.Chains[to]
				reach(state.Chains[to])
			}
		}
	}
	for _, jump := range state.Jumps {
		reached[jump.Chain] = append(reached[jump.Chain], jump.Rule)
		reach([]string{jump.Rule})
	}
	return reached
}

// Many chains come and go in several transactions, and no transaction names more than it has to.
func TestManyChainsComeAndGoInSeveralTransactions(t *testing.T) {
	const most = 20
	r := newRig(t, iptables.Options{}.Splitting(most))
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := r.dump(model.IPv4)
	tenant := fm.Service("evil/ports").ClusterIP("10.96.7.7").ExternalIP("203.0.113.77").ExternalLocal()
	for i := range 60 {
		tenant.Port(fmt.Sprintf("p%d", i), uint16(4000+i))
	}
	objects := []any{tenant.Build()}
	for i := range 60 {
		objects = append(objects, fm.Endpoint(fmt.Sprintf("evil/ports:p%d/TCP", i), fmt.Sprintf("10.244.1.9:%d", 4000+i)).
			Local().Build())
	}
	r.Set(objects...)
	r.Sync()
	with := r.dump(model.IPv4)
	check := func(from, to string) {
		t.Helper()
		assert.Equal(t, to, r.dump(model.IPv4))
		batches := r.fakes[model.IPv4].Batches()
		require.Len(t, batches, 1)
		changesAtOnce(t, model.IPv4, from, batches)
		assert.Greater(t, len(batches[0].Tables), 5)
		for _, table := range batches[0].Tables {
			names := len(table.Chains) + len(table.Remove)
			if len(table.Insert)+len(table.Delete) == 0 {
				assert.LessOrEqual(t, names, most)
			}
		}
	}
	check(before, with)
	r.Delete(tenant.Build().Name)
	r.Sync()
	check(with, before)
	r.Set(objects...)
	r.Sync()
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.NotContains(t, r.dump(model.IPv4), "KPL-")
}
