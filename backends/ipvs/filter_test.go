package ipvs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// An earlier process may have died after it deleted the virtual servers at an address, and before the address.
func TestAnAddressThatAnEarlierProcessLeftIsGuardedUntilItIsGone(t *testing.T) {
	k := newKernel(t)
	put(t, k.start(t), web()...)
	servers, err := k.ipvs.Servers(t.Context())
	require.NoError(t, err)
	for _, s := range servers {
		require.NoError(t, k.ipvs.DeleteServer(t.Context(), s.ServerKey))
	}
	require.Contains(t, k.ipvs.Dump(), "address 10.96.0.10")
	key := nft.TableKey{Family: model.IPv4, Name: tableName}
	deleted := false
	k.ipvs.SetFail(func(call string) error {
		if call == "delete address 10.96.0.10" {
			table, err := k.nft.ReadTable(t.Context(), key, nil)
			require.NoError(t, err)
			require.Len(t, table.Sets["bound-ips"].Elements, 1)
			deleted = true
		}
		return nil
	})
	put(t, k.start(t), fm.Node("node-1").Build())
	require.True(t, deleted)
	require.NotContains(t, k.table(model.IPv4), "10.96.0.10")
}

// disturbed is a packet filter that another program changes just before a transaction, a number of times.
type disturbed struct {
	*nft.Fake
	change func() *nft.Transaction
	times  int
}

func (d *disturbed) Apply(ctx context.Context, tx *nft.Transaction) error {
	if d.times > 0 {
		d.times--
		if err := d.ApplyAsSomebodyElse(d.change()); err != nil {
			return err
		}
	}
	return d.Fake.Apply(ctx, tx)
}

func TestTheTableIsReadAgainWhenAnotherProgramHasChangedItMeanwhile(t *testing.T) {
	k := newKernel(t)
	want := newKernel(t)
	put(t, want.start(t), web()...)
	key := nft.TableKey{Family: model.IPv4, Name: tableName}
	filter := &disturbed{Fake: k.nft, change: func() *nft.Transaction {
		tx := nft.NewTransaction(key)
		tx.AddTable("")
		tx.DeleteTable()
		return tx
	}}
	b := k.start(t, func(o *Options) { o.NFTables, o.Families = filter, []model.Family{model.IPv4} })
	put(t, b, fm.Node("node-1").Build())
	filter.times = 4
	put(t, b, web()...)
	require.Zero(t, filter.times)
	require.Equal(t, want.table(model.IPv4), k.table(model.IPv4))
}

func TestATableWithOtherSetsIsReplaced(t *testing.T) {
	for _, change := range []func(*nft.Transaction){
		func(tx *nft.Transaction) { tx.AddSet(&nft.Set{Name: "other", Key: []nft.Field{nft.SourceAddr}}) },
		func(tx *nft.Transaction) {
			tx.DeleteTable()
			tx.AddTable(layoutComment)
			sets := newSets()
			sets[hairpins].Name = "other"
			for _, s := range sets {
				tx.AddSet(s)
			}
		},
	} {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, web()...)
		before := k.table(model.IPv4)
		tx := nft.NewTransaction(nft.TableKey{Family: model.IPv4, Name: tableName})
		change(tx)
		require.NoError(t, k.nft.ApplyUnnoticed(tx))
		require.NotEqual(t, before, k.table(model.IPv4))
		b.ForceResync()
		put(t, b)
		require.Equal(t, before, k.table(model.IPv4))
	}
}
