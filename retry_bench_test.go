package kubeproxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// BenchmarkFailuresThatStay measures what the record of failures costs at each Sync while the same service ports are
// refused for the same reasons.
func BenchmarkFailuresThatStay(b *testing.B) {
	for _, ports := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("ports=%d", ports), func(b *testing.B) {
			err := refusedPorts(ports)
			f := failures{log: logr.Discard()}
			opts, _ := Options{MinInterval: -1}.withDefaults()
			f.note(err, false, time.Now(), opts)
			b.ReportAllocs()
			for b.Loop() {
				f.note(err, false, time.Now(), opts)
				_, _ = f.counts[model.IPv4], f.counts[model.IPv6]
			}
		})
	}
}
