package nft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

func TestAFakeFails(t *testing.T) {
	fake := NewFake()
	b, err := New(t.Context(), Options{Dataplane: fake})
	require.NoError(t, err)
	backendtest.AFakeFails(t, b, fake)
}
