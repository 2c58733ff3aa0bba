package benchmarks

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	namespace   = "default"
	nodeName    = "bench-node"
	nodeAddress = "10.244.0.1"
	servicePort = 80
	podPort     = 8080
)

// The ranges of addresses.
func podCIDR() netip.Prefix     { return netip.MustParsePrefix("10.128.0.0/9") }
func serviceCIDR() netip.Prefix { return netip.MustParsePrefix("10.96.0.0/12") }

// address returns the n-th address after first.
func address(first string, n int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func vip(service int) netip.Addr { return address("10.96.1.0", service) }

// objects are the Services and EndpointSlices in the API server. Services are numbered. Each has one slice, so it has
// at most 100 endpoints, as many as the controller of slices puts into one.
type objects struct {
	client  kubernetes.Interface
	slices  []*discoveryv1.EndpointSlice // as the API server last returned them
	changes int                          // the number of replaced endpoints
}

func createNode(b *testing.B, client kubernetes.Interface) {
	node, err := client.CoreV1().Nodes().Create(b.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
	}, metav1.CreateOptions{})
	require.NoError(b, err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
	_, err = client.CoreV1().Nodes().UpdateStatus(b.Context(), node, metav1.UpdateOptions{})
	require.NoError(b, err)
}

// shape creates the services that are missing, and gives all that there are a number of endpoints.
func (o *objects) shape(b *testing.B, services, endpoints int) {
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Minute)
	defer cancel()
	require.LessOrEqual(b, endpoints, 100, "there is one slice for each service")
	o.slices = append(o.slices, make([]*discoveryv1.EndpointSlice, max(0, services-len(o.slices)))...)
	slices := o.client.DiscoveryV1().EndpointSlices(namespace)
	require.NoError(b, inParallel(len(o.slices), func(i int) (err error) {
		switch old := o.slices[i]; {
		case old == nil:
			if _, err = o.client.CoreV1().Services(namespace).Create(ctx, service(i), metav1.CreateOptions{}); err == nil {
				o.slices[i], err = slices.Create(ctx, slice(i, endpoints), metav1.CreateOptions{})
			}
		case len(old.Endpoints) != endpoints:
			resized := old.DeepCopy()
			resized.Endpoints = slice(i, endpoints).Endpoints
			o.slices[i], err = slices.Update(ctx, resized, metav1.UpdateOptions{})
		}
		return err
	}))
}

// replace gives an endpoint of a service an address that none had before, and returns it.
func (o *objects) replace(ctx context.Context, service int) (func() error, netip.Addr) {
	o.changes++
	n := o.changes
	pod := address("10.200.0.0", n)
	return func() error {
		s := o.slices[service].DeepCopy()
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
		s.Endpoints[n%len(s.Endpoints)] = endpoint(service, n, pod)
		updated, err := o.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, s, metav1.UpdateOptions{})
		if err == nil {
			o.slices[service] = updated
		}
		return err
	}, pod
}

func name(service int) string { return fmt.Sprintf("service-%d", service) }

func service(i int) *corev1.Service {
	labels := map[string]string{"app.kubernetes.io/name": name(i)}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: labels},
		Spec: corev1.ServiceSpec{ClusterIP: vip(i).String(),
			Ports: []corev1.ServicePort{{Name: "http", Port: servicePort}}},
	}
}

// slice returns an EndpointSlice as its controller writes it.
func slice(i, size int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name(i) + "-x7k2p",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name(i), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"app.kubernetes.io/name": name(i),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: name(i), UID: uid(i), Controller: ptr.To(true),
				BlockOwnerDeletion: ptr.To(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](podPort),
			Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for j := range size {
		n := i*size + j
		s.Endpoints = append(s.Endpoints, endpoint(i, n, address("10.128.0.0", n)))
	}
	return s
}

func endpoint(service, n int, pod netip.Addr) discoveryv1.Endpoint {
	node := nodeName
	if n%500 > 0 {
		node = fmt.Sprintf("node-%d", n%500)
	}
	return discoveryv1.Endpoint{
		Addresses: []string{pod.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true),
			Terminating: ptr.To(false)},
		NodeName: ptr.To(node),
		Zone:     ptr.To([]string{"a", "b", "c"}[n%3]),
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-6d4b75cb6d-%d", name(service), n), UID: uid(n),
		},
	}
}

func uid(n int) types.UID { return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)) }
