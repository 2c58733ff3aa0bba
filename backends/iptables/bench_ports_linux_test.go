package iptables_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// BenchmarkManyPorts measures the first Sync of one service with thousands of ports, of two endpoints each, with and
// without node ports and session affinity.
func BenchmarkManyPorts(b *testing.B) {
	for _, v := range []dataplane.Variant{dataplane.NFT, dataplane.Legacy} {
		for _, n := range []int{1000, 2000, 4000, 8000} {
			for _, how := range []string{"cluster", "nodeports", "external", "local"} {
				b.Run(fmt.Sprintf("%s/%d/%s", v, n, how), func(b *testing.B) {
					needPrograms(b, v)
					watch := backendtest.NewStopwatch(b)
					for b.Loop() {
						testkit.EnterNamespace(b)
						backend := newBackend(b, iptables.Options{}.Of(v))
						backend.SetNode(backendtest.Node())
						s := fm.Service("evil/ports").ClusterIP("10.96.0.1")
						if how == "external" || how == "local" {
							s.ExternalIP("203.0.113.1")
						}
						if how == "local" {
							s.ExternalLocal()
						}
						for i := range n {
							name := fmt.Sprintf("p%d", i)
							s.Port(name, uint16(1024+i))
							if how == "nodeports" {
								s.NodePort(uint16(20000 + i))
							}
							for j := range 2 {
								backend.SetEndpoint(fm.Endpoint("evil/ports:"+name+"/TCP", fmt.Sprintf("10.250.0.%d:%d", 1+j, 1024+i)).Build())
							}
						}
						backend.SetService(s.Build())
						watch.Time(func() { require.NoError(b, backend.Sync(b.Context())) })
						require.NoError(b, backend.Close())
					}
				})
			}
		}
	}
}
