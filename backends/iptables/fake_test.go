package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestAFakeFails(t *testing.T) {
	fake := NewFake(model.IPv4)
	b, err := New(t.Context(), Options{Dataplanes: []Dataplane{fake}})
	require.NoError(t, err)
	backendtest.AFakeFails(t, b, fake)
}
