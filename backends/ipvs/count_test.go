package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

// One endpoint that is replaced is a constant number of calls, whatever the size of the cluster.
func TestAReplacedEndpointCostsTheSameInEveryCluster(t *testing.T) {
	for _, size := range backendtest.Sizes(10, 100, 10_000) {
		t.Run(size.String(), func(t *testing.T) {
			k := newKernel(t)
			b := k.start(t)
			size.Set(b)
			require.NoError(t, b.Sync(t.Context()))
			k.ipvs.TakeCalls()
			applied := k.nft.Applied()
			for n := range 4 {
				size.ReplaceEndpoint(b, n)
				require.NoError(t, b.Sync(t.Context()))
				calls := k.ipvs.TakeCalls()
				require.Len(t, calls.Writes, 2, "one endpoint comes, one takes no more: %v", calls.Writes)
				require.Zero(t, calls.Reads)
			}
			require.Equal(t, applied, k.nft.Applied(), "the packet filter does not know endpoints")
		})
	}
}

func TestAdoptingAnUnchangedKernelOfABigClusterWritesNothing(t *testing.T) {
	size := backendtest.ClusterSize{Services: 10_000, Endpoints: 10}
	k := newKernel(t)
	b := k.start(t)
	size.Set(b)
	require.NoError(t, b.Sync(t.Context()))
	applied := k.nft.Applied()

	b = k.start(t)
	size.Set(b)
	require.NoError(t, b.Sync(t.Context()))
	require.Empty(t, k.ipvs.TakeCalls().Writes)
	require.Equal(t, applied, k.nft.Applied())

	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.Empty(t, k.ipvs.TakeCalls().Writes, "a full resync")
	require.Equal(t, applied, k.nft.Applied())
}
