package nft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func BenchmarkBesideTenants(b *testing.B) {
	testkit.NeedRoot(b)
	backendtest.BesideTenants(b, func(b *testing.B) backendtest.Backend {
		testkit.EnterNamespace(b)
		backend, err := nft.New(b.Context(), nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
		require.NoError(b, err)
		return backend
	})
}
