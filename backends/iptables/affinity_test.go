package iptables_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The kernel multiplies seconds by its ticks in 32 bits: more than 49 days would wrap around to a shorter time, and
// what does not fit into 32 bits is refused.
func TestAffinityOfAnyLengthIsServed(t *testing.T) {
	for timeout, want := range map[time.Duration]string{
		time.Nanosecond:        "--seconds 1 ",
		3 * time.Hour:          "--seconds 10800 ",
		49 * 24 * time.Hour:    "--seconds 4233600 ",
		time.Duration(1 << 62): "--seconds 4294967 ",
		math.MaxInt64:          "--seconds 4294967 ",
	} {
		t.Run(timeout.String(), func(t *testing.T) {
			r := newRig(t, iptables.Options{})
			r.Set(backendtest.Node(), fm.Service("a/sticky").ClusterIP("10.96.0.1").Port("http", 80).Affinity(timeout).Build(),
				fm.Endpoint("a/sticky:http/TCP", "10.244.2.1:80").Build())
			r.Sync()
			assert.Contains(t, r.dump(model.IPv4), want)
		})
	}
}
