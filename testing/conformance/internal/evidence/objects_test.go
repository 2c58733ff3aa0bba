package evidence_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// TestObjectsAreAppliable: the output has kind and apiVersion, and all fields except those that the server sets.
func TestObjectsAreAppliable(t *testing.T) {
	service := kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).LoadBalancerIP("203.0.113.2").
		Created(time.Unix(1, 0)).UID("u").Build()
	service.ResourceVersion = "17"
	objects := []metav1.Object{service,
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").Build(),
		kube.Node("node-1").InternalIP("192.0.2.10").Build(), kube.ServiceCIDR("kubernetes", "10.96.0.0/16")}
	text, err := evidence.Objects(objects)
	require.NoError(t, err)
	fm.Golden(t, "testdata/objects.yaml", text)

	read, err := fm.ParseYAML([]byte(text))
	require.NoError(t, err)
	require.Len(t, read, len(objects))
	assert.Equal(t, "17", service.ResourceVersion, "the object itself stays as it is")
	service.ResourceVersion, service.UID, service.CreationTimestamp = "", "", metav1.Time{}
	for i := range objects {
		clearType(read[i])
		clearType(objects[i])
		assert.Equal(t, objects[i], read[i])
	}
}

// clearType removes the type, which objects of Go code need not have.
func clearType(object metav1.Object) {
	if o, ok := object.(runtime.Object); ok {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
}

func TestObjectsOfAnotherKind(t *testing.T) {
	_, err := evidence.Objects([]metav1.Object{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}})
	assert.ErrorContains(t, err, "a/b")
}
