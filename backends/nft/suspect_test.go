package nft_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// busyNode is a kernel in which somebody changes other rules all the time, so that with every transaction in which
// nobody listens all tables are suspected of having been changed.
type busyNode struct {
	*dataplane.Fake
	did struct{ transactions, reads int }
}

func (b *busyNode) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	b.did.transactions++
	if err := b.Fake.Apply(ctx, tx); err != nil || tx.Elements() < 10 {
		return err
	}
	return b.Fake.ApplyAsSomebodyElse(dataplane.NewTransaction(tx.Table))
}

func (b *busyNode) ReadTable(ctx context.Context, key dataplane.TableKey,
	elements func(*dataplane.TableSet) bool) (*dataplane.Table, error) {
	t, err := b.Fake.ReadTable(ctx, key, elements)
	if err == nil {
		b.did.reads++
	}
	return t, err
}

func TestABusyNodeIsNotRewrittenInALoop(t *testing.T) {
	node := &busyNode{Fake: dataplane.NewFake()}
	ctx, cancel := context.WithCancel(t.Context())
	backend, err := nft.New(ctx, nft.Options{Dataplane: node,
		Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	require.NoError(t, err)
	defer backend.Close()
	cancel() // what would be done in the background is done by Syncs, which is easier to follow
	backendtest.Set(t, backend, backendtest.EveryFeature()...)
	type did struct{ transactions, reads int }
	sync := func() did {
		node.did = did{}
		require.NoError(t, backend.Sync(t.Context()))
		return node.did
	}
	assert.Equal(t, did{1, 1}, sync(), "it is made")
	assert.Equal(t, did{0, 1}, sync(), "it is looked at, for somebody may have changed it meanwhile")
	assert.Equal(t, did{0, 0}, sync(), "it is known")
	backend.ForceResync()
	assert.Equal(t, did{2, 1}, sync(), "slots are written anew; the old ones cannot be removed at once")
	assert.Equal(t, did{1, 1}, sync(), "it is looked at, and the old slots are removed")
	assert.Equal(t, did{0, 0}, sync(), "it is known")
	backendtest.Set(t, backend, fm.Endpoint("default/web:http/TCP", "10.244.1.6:8080").Build())
	assert.Equal(t, did{1, 0}, sync(), "what changes is written, and no more")
}
