package library_test

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// TestARestoredServerIsListedAnew puts an older copy of what etcd has back. The API server then says nothing to watches
// of before (kubernetes/kubernetes#107457), and the proxy finds out by itself (S68).
func TestARestoredServerIsListedAnew(t *testing.T) {
	need.Deep(t) // it takes two minutes, most of which are the silence
	t.Parallel()
	c := cluster.Start(t, cluster.Options{})
	w := newWriter(t, c)
	w.serve("stays", nil, "10.1.0.1")
	w.serve("back", nil, "10.1.0.2")
	backup := c.Backup()
	client, recorded := recordedClient(t, c.Config)
	p := startProxy(t, "clientset", clientset(t, client, ""), "")
	p.awaitState("what is in the backup", "stays", "stays -> 10.1.0.1:8080", "back", "back -> 10.1.0.2:8080")

	w.remove("back")
	w.serve("goes", nil, "10.1.0.3")
	for range 300 { // more than the API server itself writes when it starts
		w.changeSlice("stays", func(s *discoveryv1.EndpointSlice) {
			a := netip.MustParseAddr(s.Endpoints[0].Addresses[0])
			s.Endpoints[0].Addresses[0] = a.Next().String()
		})
	}
	w.change("stays", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })
	w.moveNode("zone-a")
	stays := model.ServiceName{Namespace: "default", Name: "stays"}
	p.await("what has changed since the backup", func() bool {
		return p.Node().Zone == "zone-a" && len(p.Services()[stays].ExternalIPs) == 1
	})
	p.awaitState("what has changed since the backup", "stays", "stays -> 10.1.1.45:8080", "goes", "goes -> 10.1.0.3:8080")
	before, err := w.services().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	questions := recorded.questions("services")
	c.Restore(backup) // if that takes more than 90 s, there are questions meanwhile, but no answers
	after, err := w.services().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Less(t, versionOf(t, after), versionOf(t, before))
	w.serve("new", nil, "10.1.0.4")
	p.awaitState("what is true now", "stays", "stays -> 10.1.0.1:8080", "back", "back -> 10.1.0.2:8080",
		"new", "new -> 10.1.0.4:8080")
	p.await("the Service and the Node of the backup", func() bool {
		return p.Node().Zone == "" && len(p.Services()[stays].ExternalIPs) == 0
	})
	assert.Greater(t, recorded.questions("services"), questions, "it was the silence that it noticed")

	w.serve("last", nil, "10.1.0.5")
	p.awaitState("what changes later", "stays", "stays -> 10.1.0.1:8080", "back", "back -> 10.1.0.2:8080",
		"new", "new -> 10.1.0.4:8080", "last", "last -> 10.1.0.5:8080")
}

func versionOf(t *testing.T, list *corev1.ServiceList) uint64 {
	version, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	require.NoError(t, err)
	return version
}
