package dropin_test

import (
	"fmt"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

const namespace = "default"

// create makes an object.
func create(l *lab, object runtime.Object) {
	l.t.Helper()
	var err error
	ctx, opts := l.t.Context(), metav1.CreateOptions{}
	switch o := object.(type) {
	case *corev1.Service:
		_, err = l.Client.CoreV1().Services(namespace).Create(ctx, o, opts)
	case *discoveryv1.EndpointSlice:
		_, err = l.Client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, o, opts)
	case *corev1.Node:
		_, err = l.Client.CoreV1().Nodes().Create(ctx, o, opts)
	default:
		l.t.Fatalf("cannot create a %T", object)
	}
	require.NoError(l.t, err)
}

// service makes a Service of both families with the port 80, and returns its cluster IPs, in the order of families.
func (l *lab) service(name string, with ...func(*corev1.Service)) [2]string {
	l.t.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range with {
		f(s)
	}
	status := s.Status
	all := l.Client.CoreV1().Services(namespace)
	made, err := all.Create(l.t.Context(), s, metav1.CreateOptions{})
	require.NoError(l.t, err)
	if len(status.LoadBalancer.Ingress) > 0 {
		made.Status = status
		made, err = all.UpdateStatus(l.t.Context(), made, metav1.UpdateOptions{})
		require.NoError(l.t, err)
	}
	require.Len(l.t, made.Spec.ClusterIPs, 2)
	return [2]string(made.Spec.ClusterIPs)
}

// nodePort makes a Service one of type NodePort.
func nodePort(port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = port
	}
}

// loadBalancer makes a Service one of type LoadBalancer, with node port and VIPs.
func loadBalancer(port int32, vips [2]string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		nodePort(port)(s)
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range vips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func externalIPs(ips [2]string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips[:] }
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func affinity(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }

// endpoint is a pod as a Service's endpoint on some node.
type endpoint struct {
	*pod
	node string
}

// setEndpoints writes the slices of a Service, one for each family.
func (l *lab) setEndpoints(service string, endpoints ...endpoint) {
	l.t.Helper()
	all := l.Client.DiscoveryV1().EndpointSlices(namespace)
	for i, family := range families {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", service, i),
				Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressType(family),
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080),
				Protocol: ptr.To(corev1.ProtocolTCP)}},
		}
		for _, e := range endpoints {
			slice.Endpoints = append(slice.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{e.ips[i]}, NodeName: ptr.To(e.node)})
		}
		require.NoError(l.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			old, err := all.Get(l.t.Context(), slice.Name, metav1.GetOptions{})
			if err != nil {
				_, err = all.Create(l.t.Context(), slice, metav1.CreateOptions{})
				return err
			}
			old.Endpoints = slice.Endpoints
			_, err = all.Update(l.t.Context(), old, metav1.UpdateOptions{})
			return err
		}))
	}
}
