package nft_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// onEmptyKernel returns a backend on a kernel without tables.
func onEmptyKernel(tb testing.TB) backendtest.Backend {
	testkit.EnterNamespace(tb)
	return newBackend(tb, nft.Options{})
}

func BenchmarkBesideTenants(b *testing.B) {
	testkit.NeedRoot(b)
	backendtest.BesideTenants(b, onEmptyKernel)
}

func TestNoTenantTakesTheKernelMoreTimeThanItAsksFor(t *testing.T) {
	need.Deep(t)
	testkit.NeedRoot(t)
	backendtest.NoTenantTakesMoreTime(t, onEmptyKernel)
}
