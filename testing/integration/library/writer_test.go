package library_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// writer writes to the API server, in namespace default.
type writer struct {
	t      *testing.T
	client kubernetes.Interface
}

// newWriter also creates this node, and waits for the Service that the API server creates itself.
func newWriter(t *testing.T, c *cluster.Cluster) *writer {
	w := &writer{t: t, client: c.Client}
	w.create(kube.Node(theNode).InternalIP("172.30.0.1").Build())
	waiting, err := w.services().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"})
	require.NoError(t, err)
	<-waiting.ResultChan()
	waiting.Stop()
	return w
}

func (w *writer) services() corev1client.ServiceInterface {
	return w.client.CoreV1().Services("default")
}

// create makes objects.
func (w *writer) create(objects ...runtime.Object) {
	w.t.Helper()
	for _, object := range objects {
		var err error
		ctx, opts := w.t.Context(), metav1.CreateOptions{}
		switch o := object.(type) {
		case *corev1.Service:
			_, err = w.services().Create(ctx, o, opts)
		case *discoveryv1.EndpointSlice:
			_, err = w.client.DiscoveryV1().EndpointSlices("default").Create(ctx, o, opts)
		case *corev1.Node:
			_, err = w.client.CoreV1().Nodes().Create(ctx, o, opts)
		case *networkingv1.ServiceCIDR:
			_, err = w.client.NetworkingV1().ServiceCIDRs().Create(ctx, o, opts)
		default:
			w.t.Fatalf("cannot create a %T", object)
		}
		require.NoError(w.t, err)
	}
}

// serve makes a service with one port and a slice with these endpoints. Both get the labels.
func (w *writer) serve(name string, labels map[string]string, endpoints ...string) {
	w.t.Helper()
	service := kube.Service(name).Port("http", 80)
	slice := kube.EndpointSlice(name).Name(name).Port("http", 8080)
	for k, v := range labels {
		service.Label(k, v)
		slice.Label(k, v)
	}
	for _, e := range endpoints {
		slice.Endpoint(e)
	}
	w.create(service.Build(), slice.Build())
}

// change changes a service.
func (w *writer) change(name string, f func(*corev1.Service)) {
	w.t.Helper()
	require.NoError(w.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s, err := w.services().Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(s)
		_, err = w.services().Update(w.t.Context(), s, metav1.UpdateOptions{})
		return err
	}))
}

// changeSlice changes the slice of a service.
func (w *writer) changeSlice(name string, f func(*discoveryv1.EndpointSlice)) {
	w.t.Helper()
	all := w.client.DiscoveryV1().EndpointSlices("default")
	s, err := all.Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	f(s)
	_, err = all.Update(w.t.Context(), s, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}

// moveNode puts the node into a zone.
func (w *writer) moveNode(zone string) {
	w.t.Helper()
	all := w.client.CoreV1().Nodes()
	n, err := all.Get(w.t.Context(), theNode, metav1.GetOptions{})
	require.NoError(w.t, err)
	metav1.SetMetaDataLabel(&n.ObjectMeta, corev1.LabelTopologyZone, zone)
	_, err = all.Update(w.t.Context(), n, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}

// remove deletes a service and its slice.
func (w *writer) remove(name string) {
	w.t.Helper()
	require.NoError(w.t, w.services().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	require.NoError(w.t,
		w.client.DiscoveryV1().EndpointSlices("default").Delete(w.t.Context(), name, metav1.DeleteOptions{}))
}
