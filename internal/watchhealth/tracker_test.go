package watchhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheOldestKindCounts(t *testing.T) {
	var tracker Tracker
	begin := time.Now()
	oldest := func() any {
		kind, at, quiet := tracker.Oldest()
		assert.Zero(t, quiet)
		if at.IsZero() {
			return kind
		}
		return []any{kind, at.Sub(begin)}
	}
	for _, kind := range []metav1.Object{&discoveryv1.EndpointSlice{}, &corev1.Service{}, &networkingv1.ServiceCIDR{}} {
		tracker.Bookmarks(kind)
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

// A kind without bookmarks may be silent for longer than one with them.
func TestAKindWithoutBookmarksMayBeSilentForLonger(t *testing.T) {
	var tracker Tracker
	begin := time.Now()
	tracker.Bookmarks(&corev1.Service{})
	tracker.Heard(&discoveryv1.EndpointSlice{}, "1", begin)
	tracker.Heard(&corev1.Service{}, "1", begin.Add(QuietWatch-1))
	kind, at, quiet := tracker.Oldest()
	assert.Equal(t, []any{"Service", begin.Add(QuietWatch - 1), time.Duration(0)}, []any{kind, at, quiet})
	tracker.Heard(&corev1.Service{}, "1", begin.Add(QuietWatch+1))
	kind, at, quiet = tracker.Oldest()
	assert.Equal(t, []any{"EndpointSlice", begin, QuietWatch}, []any{kind, at, quiet})
	tracker.Bookmarks(&discoveryv1.EndpointSlice{})
	_, _, quiet = tracker.Oldest()
	assert.Zero(t, quiet)
}
