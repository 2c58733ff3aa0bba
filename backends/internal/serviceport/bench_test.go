package serviceport_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// BenchmarkEach is what a change of a service costs before a backend does anything of its own.
func BenchmarkEach(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n, "-endpoints"), func(b *testing.B) {
			var endpoints []*model.Endpoint
			for i := range n {
				endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.%d:8080", 2+i/200, 1+i%200)).Build())
			}
			e := entry(service().ClusterIP("10.96.0.1").DetectsLocalPods().Build(), endpoints...)
			b.ReportAllocs()
			for b.Loop() {
				node.Each(e, func(serviceport.Port) {}, nil)
			}
		})
	}
}
