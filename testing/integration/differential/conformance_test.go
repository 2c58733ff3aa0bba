package differential

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// needsNewObject names the cases of the conformance suite that change immutable fields. With a real API server the
// object has to be deleted and created again.
var needsNewObject = map[string]bool{
	"addresses move between services in one wave": true, // cluster IPs among them
	"a service gets and loses a family":           true, // the primary one, too
}

// TestConformanceCasesAreValid: an API server accepts the objects of the conformance suite: as new ones, and, except in
// the cases above, as updates of those of the state before. It allocates ports for health checks before it validates.
func TestConformanceCasesAreValid(t *testing.T) {
	clusters, err := conformance.Objects()
	require.NoError(t, err)
	require.Greater(t, len(clusters), 50)
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		there := map[string]object{}
		updatable := true
		for i, objects := range clusters[name] {
			now := map[string]object{}
			for _, each := range objects {
				o, known := validated(each)
				if !known {
					continue
				}
				errs, err := validate(nil, o)
				require.NoError(t, err)
				assert.NoError(t, errs.ToAggregate(), "%s, state %d: %v", name, i+1, keyOf(o))
				key := keyOf(o).String()
				now[key] = o
				if old := there[key]; old != nil {
					errs, err := validate(old, o)
					require.NoError(t, err)
					if len(errs) > 0 {
						updatable = false
						assert.True(t, needsNewObject[name], "%s, state %d: %v: %v", name, i+1, key, errs.ToAggregate())
					}
				}
			}
			there = now
		}
		if updatable {
			assert.False(t, needsNewObject[name], "%s needs no exception", name)
		}
	}
}

// validated returns an object as an API server would validate it, if validate knows its kind.
func validated(o metav1.Object) (object, bool) {
	switch o := o.(type) {
	case *corev1.Service:
		local := o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer && local && o.Spec.HealthCheckNodePort == 0 {
			o.Spec.HealthCheckNodePort = 32767
		}
		return o, true
	case *discoveryv1.EndpointSlice:
		return o, true
	case *corev1.Node:
		return o, true
	}
	return nil, false
}
