package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

func TestAFakeFails(t *testing.T) {
	fake := NewFake()
	opts := newKernel(t).options()
	opts.Dataplane = fake
	b, err := New(t.Context(), opts)
	require.NoError(t, err)
	backendtest.AFakeFails(t, b, fake)
}
