package speed

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

func TestSample(t *testing.T) {
	assert.Equal(t, []int{0}, sample(16, 1))
	assert.Equal(t, []int{2, 1, 0}, sample(16, 3))
	assert.Equal(t, []int{999, 499, 0}, sample(3, 1000))
}

// The objects always have the current endpoints, each once, in slices of the size that Kubernetes uses.
func TestLargeCluster(t *testing.T) {
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		c := newLargeCluster(program.Size{Services: 3, Endpoints: 250}, f)
		stored := map[string]*discoveryv1.EndpointSlice{}
		services := 0
		for _, o := range c.objects() {
			if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
				stored[slice.Name] = slice
			} else {
				services++
			}
		}
		assert.Equal(t, 4, services, "three, and that of the connection in the background")
		for i := range 600 {
			ch := c.replace(i % 3)
			slice := ch.object.(*discoveryv1.EndpointSlice)
			require.Contains(t, stored, slice.Name)
			stored[slice.Name] = slice
			require.Contains(t, c.pods[ch.service], ch.pod)
		}
		seen := map[string]bool{}
		for _, slice := range stored {
			assert.LessOrEqual(t, len(slice.Endpoints), slicePods)
			for _, e := range slice.Endpoints {
				assert.False(t, seen[e.Addresses[0]], "%s is there twice", e.Addresses[0])
				seen[e.Addresses[0]] = true
			}
		}
		want := map[string]bool{}
		for _, pods := range c.pods {
			for _, pod := range pods {
				want[pod.String()] = true
			}
		}
		assert.Equal(t, want, seen)
	}
}

func TestLatency(t *testing.T) {
	assert.Zero(t, latency(nil))
	list := []*change{{}} // one that has not shown
	for i := range 100 {
		list = append(list, &change{pod: netip.Addr{}, took: time.Duration(100-i) * time.Millisecond})
	}
	l := latency(list)
	assert.Equal(t, 100, l.Count)
	assert.InDelta(t, 51, l.P50, 0.01)
	assert.InDelta(t, 100, l.P99, 0.01)
}
