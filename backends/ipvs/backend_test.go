package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The state of the kernel, in golden files for people to read.
func TestEveryFeature(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	fakemodel.Golden(t, "testdata/every-feature.ipvs", k.ipvs.Dump())
	fakemodel.Golden(t, "testdata/every-feature-ipv4.nft", k.table(model.IPv4))
	fakemodel.Golden(t, "testdata/every-feature-ipv6.nft", k.table(model.IPv6))
}

func TestRestartOnAnUnchangedKernelWritesNothing(t *testing.T) {
	k := newKernel(t)
	put(t, k.start(t), backendtest.EveryFeature()...)
	before, applied := k.ipvs.Dump(), k.nft.Applied()

	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	require.Empty(t, k.ipvs.TakeCalls().Writes)
	require.Equal(t, applied, k.nft.Applied())
	require.Equal(t, before, k.ipvs.Dump())
}
