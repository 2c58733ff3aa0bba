package ipvs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// counting is a real packet filter that counts transactions.
type counting struct {
	nft.Interface
	applied int
	last    string
}

func (c *counting) Apply(ctx context.Context, tx *nft.Transaction) error {
	c.applied++
	c.last = tx.Text()
	return c.Interface.Apply(ctx, tx)
}

// A table that is replaced, or a chain that is written anew, loses packets: a restart must find what it has made.
func TestARestartFindsItsTableInTheKernelAsItShouldBe(t *testing.T) {
	testkit.NewNamespace(t).Do(func() error {
		real, err := nft.NewNetlink()
		require.NoError(t, err)
		defer real.Close()
		filter := &counting{Interface: real}
		k := newKernel(t)
		put(t, k.start(t, func(o *Options) { o.NFTables = filter }), backendtest.EveryFeature()...)
		assert.NotZero(t, filter.applied)

		filter.applied = 0
		b := k.start(t, func(o *Options) { o.NFTables = filter })
		put(t, b, backendtest.EveryFeature()...)
		assert.Zero(t, filter.applied, filter.last)
		b.ForceResync()
		put(t, b)
		assert.Zero(t, filter.applied, filter.last)
		return nil
	})
}
