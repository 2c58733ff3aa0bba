package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNoObjectIsAnError(t *testing.T) {
	state, err := New(t.Context(), Options{}, ClusterOptions{})
	require.NoError(t, err)
	for _, object := range []metav1.Object{
		nil, (*corev1.Service)(nil), (*discoveryv1.EndpointSlice)(nil), (*corev1.Node)(nil),
		(*networkingv1.ServiceCIDR)(nil),
		(*corev1.Pod)(nil),
	} {
		for _, deleted := range []bool{false, true} {
			changed, err := state.Apply(object, deleted)
			require.Error(t, err, "%T", object)
			require.False(t, changed)
		}
	}
	_, err = state.Apply((*corev1.Node)(nil), false)
	require.EqualError(t, err, "the object is a nil *v1.Node")
	require.False(t, state.Pending().Any())
}
