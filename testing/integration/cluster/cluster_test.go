package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

func TestTheAPIServerIsRealAndKeepsItsStateOverARestart(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	version, err := c.Client.Discovery().ServerVersion()
	require.NoError(t, err)
	assert.Equal(t, cluster.Version(t), version.GitVersion)

	services := c.Client.CoreV1().Services("default")
	made, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.NotEmpty(t, made.Spec.ClusterIP)

	c.StopAPIServer()
	_, err = services.Get(t.Context(), "web", metav1.GetOptions{})
	require.Error(t, err)
	c.Compact()
	c.StartAPIServer()
	again, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, made.UID, again.UID)

	w, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	if err == nil {
		event, ok := <-w.ResultChan()
		require.True(t, ok)
		err = apierrors.FromObject(event.Object)
	}
	assert.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "what was compacted is gone: %v", err)
}
