package iptables_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// replay applies everything that a fake was given to a real iptables, in a network namespace of its own: the programs
// and the kernel have to accept it, and iptables-save has to print it as it was written. Without root and the programs
// it does nothing: then TestTheProgramsAcceptWhatTheFakeAccepts is skipped, and says what is missing.
func replay(t testing.TB, fake *dataplane.Fake) {
	t.Helper()
	for _, name := range []string{"iptables-nft", "ip6tables-nft"} {
		if _, found := need.Find(name); !found || os.Geteuid() != 0 {
			return
		}
	}
	ctx := context.WithoutCancel(t.Context()) // this is for the end of a test
	var real *dataplane.IPTables
	testkit.NewNamespace(t).Do(func() (err error) {
		real, err = dataplane.New(ctx, dataplane.Options{Family: fake.Features().Family, Variant: dataplane.NFT})
		return err
	})
	defer real.Close()
	counts := true
	for _, name := range iptables.CounterNames() {
		counts = counts && real.EnsureCounter(name) == nil
	}
	again := dataplane.NewFake(fake.Features().Family)
	for _, b := range fake.History() {
		if !counts {
			b = withoutCounting(b)
		}
		require.NoError(t, again.RestoreAsSomebodyElse(b))
		require.NoError(t, real.Restore(ctx, b), "%s", b)
		want, err := again.Read(ctx, b.Tables[0].Table, "")
		require.NoError(t, err)
		got, err := real.Read(ctx, b.Tables[0].Table, "")
		require.NoError(t, err)
		require.Equal(t, want, got, "%s", b)
	}
	if counts {
		assert.Equal(t, fake.Dump(), again.Dump())
	}
}

// withoutCounting returns a batch for a kernel that has no counters.
func withoutCounting(b *dataplane.Batch) *dataplane.Batch {
	without := &dataplane.Batch{}
	for _, table := range b.Tables {
		table.Chains = slices.Clone(table.Chains)
		for i := range table.Chains {
			c := &table.Chains[i]
			c.Rules = slices.Clone(c.Rules)
			for j := range c.Rules {
				for _, name := range iptables.CounterNames() {
					match := dataplane.CountWith(name)
					c.Rules[j] = strings.ReplaceAll(strings.TrimSuffix(c.Rules[j], " "+strings.TrimSpace(match)), match, "")
				}
			}
		}
		without.Tables = append(without.Tables, table)
	}
	return without
}

func TestTheProgramsAcceptWhatTheFakeAccepts(t *testing.T) {
	need.Root(t)
	needPrograms(t, dataplane.NFT)
	needCounters(t, dataplane.NFT)
	r := newRig(t, iptables.Options{}) // every rig is replayed at the end of its test
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	require.NoError(t, r.backend.CleanUp(t.Context()))
	for _, fake := range r.fakes {
		assert.NotEmpty(t, fake.History())
	}
}
