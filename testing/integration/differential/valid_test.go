package differential

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryv1conversion "k8s.io/kubernetes/pkg/apis/discovery/v1"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// invalid tells why an API server would reject a script, by upstream's own validation of every object: as an update if
// it exists with the same UID, otherwise as a creation.
//
// Validation is that from before addresses had to be canonical (allowOldAddresses): objects
// that were written then stay valid.
func invalid(sc script) error {
	there := cluster{}
	for i, w := range sc.waves {
		for _, e := range w {
			if _, isNode := e.object.(*corev1.Node); isNode && e.deleted && there[keyOf(e.object)] == nil {
				return fmt.Errorf("wave %d: %v goes and was not there", i+1, keyOf(e.object))
			}
			if !e.deleted {
				old := there[keyOf(e.object)]
				if old != nil && old.GetUID() != e.object.GetUID() {
					old = nil
				}
				errs, err := validate(old, e.object)
				if err == nil {
					err = errs.ToAggregate()
				}
				if err != nil {
					return fmt.Errorf("wave %d: %v: %w", i+1, keyOf(e.object), err)
				}
			}
			there.apply(e)
		}
	}
	return nil
}

// validate validates a new object or, if there is an old one, an update.
func validate(old, o object) (field.ErrorList, error) {
	switch o := o.(type) {
	case *corev1.Service:
		return validateService(typed[*corev1.Service](old), o)
	case *discoveryv1.EndpointSlice:
		return validateSlice(typed[*discoveryv1.EndpointSlice](old), o)
	}
	return validateNode(typed[*corev1.Node](old), o.(*corev1.Node))
}

func validateService(old, svc *corev1.Service) (field.ErrorList, error) {
	convert := func(s *corev1.Service) (*core.Service, error) {
		out := &core.Service{}
		s = s.DeepCopy() // the conversion shares memory
		s.ResourceVersion = "1"
		return out, corev1conversion.Convert_v1_Service_To_core_Service(s, out, nil)
	}
	in, err := convert(svc)
	if err != nil {
		return nil, err
	}
	status := corevalidation.ValidateLoadBalancerStatus(&in.Status.LoadBalancer, nil, field.NewPath("status"), &in.Spec)
	if old == nil {
		return append(status, corevalidation.ValidateServiceCreate(in)...), nil
	}
	before, err := convert(old)
	if err != nil {
		return nil, err
	}
	return append(status, corevalidation.ValidateServiceUpdate(in, before)...), nil
}

func validateSlice(old, slice *discoveryv1.EndpointSlice) (field.ErrorList, error) {
	convert := func(s *discoveryv1.EndpointSlice) (*discovery.EndpointSlice, error) {
		out := &discovery.EndpointSlice{}
		s = s.DeepCopy()
		s.ResourceVersion = "1"
		return out, discoveryv1conversion.Convert_v1_EndpointSlice_To_discovery_EndpointSlice(s, out, nil)
	}
	in, err := convert(slice)
	if err != nil {
		return nil, err
	}
	for i := range in.Ports {
		if in.Ports[i].Name == nil {
			return field.ErrorList{field.Required(field.NewPath("ports").Index(i).Child("name"),
				"defaulted by the API")}, nil
		}
	}
	if old == nil {
		return discoveryvalidation.ValidateEndpointSliceCreate(in), nil
	}
	before, err := convert(old)
	if err != nil {
		return nil, err
	}
	return discoveryvalidation.ValidateEndpointSliceUpdate(in, before), nil
}

func validateNode(old, node *corev1.Node) (field.ErrorList, error) {
	convert := func(n *corev1.Node) (*core.Node, error) {
		out := &core.Node{}
		n = n.DeepCopy()
		n.ResourceVersion = "1"
		n.DeletionTimestamp = nil // the API server's own
		return out, corev1conversion.Convert_v1_Node_To_core_Node(n, out, nil)
	}
	in, err := convert(node)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return corevalidation.ValidateNode(in), nil
	}
	before, err := convert(old)
	if err != nil {
		return nil, err
	}
	return corevalidation.ValidateNodeUpdate(in, before), nil
}

// TestGeneratedObjectsAreValid: an API server accepts what the generator makes.
func TestGeneratedObjectsAreValid(t *testing.T) {
	for seed := range uint64(validSeeds) {
		sc := randomScript(testkit.Seeded(seed), false)
		require.NoError(t, invalid(sc), "seed %d:\n%v", seed, sc)
	}
}

// TestMalformedObjectsAreNotValid: an API server rejects what is called malformed.
func TestMalformedObjectsAreNotValid(t *testing.T) {
	refused := 0
	for seed := range uint64(100) {
		if invalid(randomScript(testkit.Seeded(seed), true)) != nil {
			refused++
		}
	}
	require.Greater(t, refused, 80)
}
