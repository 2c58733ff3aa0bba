package hns

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

func TestAFakeFails(t *testing.T) {
	fake := NewFake("cbr0", "L2Bridge")
	b, err := New(t.Context(), Options{Network: "cbr0", Dataplane: fake})
	require.NoError(t, err)
	backendtest.AFakeFails(t, b, fake)
}
