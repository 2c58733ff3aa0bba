package iptables_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func BenchmarkBesideTenants(b *testing.B) {
	for _, v := range []dataplane.Variant{dataplane.Legacy, dataplane.NFT} {
		b.Run(string(v), func(b *testing.B) {
			needPrograms(b, v)
			backendtest.BesideTenants(b, func(b testing.TB) backendtest.Backend {
				testkit.EnterNamespace(b)
				return newBackend(b, iptables.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}.Of(v))
			})
		})
	}
}
