package conformance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestSizes(t *testing.T) {
	for _, z := range []Size{{1, 1}, {1000, 10}, {60000, 8}, {1, 500000}} {
		require.NoError(t, z.Validate())
	}
	for _, z := range []Size{{0, 1}, {1, 0}, {-1, -1}, {60001, 1}, {1000, 501}, {1 << 62, 1 << 62}} {
		require.Error(t, z.Validate(), "%v", z)
	}
	assert.Equal(t, []int{0}, Size{1, 1}.sample(16))
	assert.Equal(t, []int{2, 1, 0}, Size{3, 1}.sample(16))
	assert.Equal(t, []int{999, 499, 0}, Size{1000, 1}.sample(3))
}

// The objects always have the endpoints that there are, each once, in slices that Kubernetes would make.
func TestLargeCluster(t *testing.T) {
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		c := newLargeCluster(Size{3, 250}, f)
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
