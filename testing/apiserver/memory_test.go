package apiserver

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCompactForgetsTheHistory(t *testing.T) {
	s, err := New()
	require.NoError(t, err)
	for range 100 {
		require.NoError(t, s.Set(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}))
	}
	assert.Len(t, s.history, 100)
	s.Compact()
	assert.Empty(t, s.history)
	require.NoError(t, s.Set(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}))
	assert.Len(t, s.history, 1)
	assert.Empty(t, s.sent, "watches that have ended hold nothing back")
}

func TestOldRequestsAreForgotten(t *testing.T) {
	s, err := New()
	require.NoError(t, err)
	const asked = 3*maxRequests + 7
	for i := range asked {
		s.fault(t.Context(), Request{Name: strconv.Itoa(i)})
		require.LessOrEqual(t, len(s.requests), 2*maxRequests)
	}
	got := s.Requests()
	require.GreaterOrEqual(t, len(got), maxRequests)
	for i, r := range got {
		require.Equal(t, strconv.Itoa(asked-len(got)+i), r.Name)
	}
}
