package freshness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

func TestTheOldestKindCounts(t *testing.T) {
	var tracker Tracker
	begin := time.Now()
	oldest := func() any {
		kind, at := tracker.Oldest()
		if at.IsZero() {
			return kind
		}
		return []any{kind, at.Sub(begin)}
	}
	assert.Empty(t, oldest())
	tracker.Heard(&discoveryv1.EndpointSlice{}, "1", begin.Add(1))
	tracker.Heard(&corev1.Service{}, "1", begin.Add(2))
	tracker.Heard(&networkingv1.ServiceCIDR{}, "1", begin)
	assert.Equal(t, []any{"ServiceCIDR", time.Duration(0)}, oldest())
	tracker.Heard(&networkingv1.ServiceCIDR{}, "", begin.Add(3))
	assert.Equal(t, []any{"EndpointSlice", time.Duration(1)}, oldest(), "the other one is not served any more")
	tracker.Heard(&discoveryv1.EndpointSlice{}, "2", begin.Add(4))
	assert.Equal(t, []any{"Service", time.Duration(2)}, oldest())
	tracker.Heard(&corev1.Node{}, "", begin)
	assert.Equal(t, []any{"Service", time.Duration(2)}, oldest())
}
