package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// EndpointSliceBuilder builds an EndpointSlice.
type EndpointSliceBuilder struct{ slice discoveryv1.EndpointSlice }

// EndpointSlice returns a builder for a slice of the service "namespace/name". The slice's name is the service's with
// the suffix "-ipv4" or "-ipv6", unless Name sets another.
func EndpointSlice(service string) *EndpointSliceBuilder {
	b := &EndpointSliceBuilder{}
	b.slice.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	b.slice.ObjectMeta = objectMeta(service)
	b.slice.Labels = map[string]string{discoveryv1.LabelServiceName: b.slice.Name}
	b.slice.Name = ""
	return b
}

// Name sets the slice's name.
func (b *EndpointSliceBuilder) Name(name string) *EndpointSliceBuilder {
	b.slice.Name = name
	return b
}

// Label adds or replaces a label.
func (b *EndpointSliceBuilder) Label(key, value string) *EndpointSliceBuilder {
	b.slice.Labels[key] = value
	return b
}

// Annotation adds an annotation.
func (b *EndpointSliceBuilder) Annotation(key, value string) *EndpointSliceBuilder {
	metav1.SetMetaDataAnnotation(&b.slice.ObjectMeta, key, value)
	return b
}

// AddressType sets the address type. Default: the first endpoint's, or IPv4.
func (b *EndpointSliceBuilder) AddressType(t discoveryv1.AddressType) *EndpointSliceBuilder {
	b.slice.AddressType = t
	return b
}

// Port adds a TCP port.
func (b *EndpointSliceBuilder) Port(name string, number int32) *EndpointSliceBuilder {
	return b.port(name, number, corev1.ProtocolTCP)
}

// UDPPort adds a UDP port.
func (b *EndpointSliceBuilder) UDPPort(name string, number int32) *EndpointSliceBuilder {
	return b.port(name, number, corev1.ProtocolUDP)
}

// SCTPPort adds an SCTP port.
func (b *EndpointSliceBuilder) SCTPPort(name string, number int32) *EndpointSliceBuilder {
	return b.port(name, number, corev1.ProtocolSCTP)
}

func (b *EndpointSliceBuilder) port(name string, number int32, protocol corev1.Protocol) *EndpointSliceBuilder {
	b.slice.Ports = append(b.slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol})
	return b
}

// Endpoint adds a ready endpoint.
func (b *EndpointSliceBuilder) Endpoint(address string) *EndpointSliceBuilder {
	b.slice.Endpoints = append(b.slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	return b.conditions(true, true, false)
}

// last returns the last endpoint or, if there is none yet, one that Build ignores.
func (b *EndpointSliceBuilder) last() *discoveryv1.Endpoint {
	if n := len(b.slice.Endpoints); n > 0 {
		return &b.slice.Endpoints[n-1]
	}
	return &discoveryv1.Endpoint{}
}

func (b *EndpointSliceBuilder) conditions(ready, serving, terminating bool) *EndpointSliceBuilder {
	b.last().Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	return b
}

// NotReady makes the last endpoint neither ready nor serving.
func (b *EndpointSliceBuilder) NotReady() *EndpointSliceBuilder {
	return b.conditions(false, false, false)
}

// Terminating makes the last endpoint terminating, not ready, and still serving.
func (b *EndpointSliceBuilder) Terminating() *EndpointSliceBuilder {
	return b.conditions(false, true, true)
}

// NotServing makes the last endpoint terminating and no longer serving.
func (b *EndpointSliceBuilder) NotServing() *EndpointSliceBuilder {
	return b.conditions(false, false, true)
}

// OnNode sets the node of the last endpoint.
func (b *EndpointSliceBuilder) OnNode(node string) *EndpointSliceBuilder {
	b.last().NodeName = &node
	return b
}

// InZone sets the zone of the last endpoint.
func (b *EndpointSliceBuilder) InZone(zone string) *EndpointSliceBuilder {
	b.last().Zone = &zone
	return b
}

// Pod sets the pod of the last endpoint.
func (b *EndpointSliceBuilder) Pod(name string) *EndpointSliceBuilder {
	b.last().TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: b.slice.Namespace, Name: name}
	return b
}

// ForZones adds zone hints to the last endpoint.
func (b *EndpointSliceBuilder) ForZones(zones ...string) *EndpointSliceBuilder {
	hints := b.hints()
	for _, zone := range zones {
		hints.ForZones = append(hints.ForZones, discoveryv1.ForZone{Name: zone})
	}
	return b
}

// ForNodes adds node hints to the last endpoint.
func (b *EndpointSliceBuilder) ForNodes(nodes ...string) *EndpointSliceBuilder {
	hints := b.hints()
	for _, node := range nodes {
		hints.ForNodes = append(hints.ForNodes, discoveryv1.ForNode{Name: node})
	}
	return b
}

func (b *EndpointSliceBuilder) hints() *discoveryv1.EndpointHints {
	ep := b.last()
	if ep.Hints == nil {
		ep.Hints = &discoveryv1.EndpointHints{}
	}
	return ep.Hints
}

// Build returns the slice.
func (b *EndpointSliceBuilder) Build() *discoveryv1.EndpointSlice {
	slice := b.slice.DeepCopy()
	if slice.AddressType == "" {
		slice.AddressType = discoveryv1.AddressTypeIPv4
		if len(slice.Endpoints) > 0 && strings.Contains(slice.Endpoints[0].Addresses[0], ":") {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	if slice.Name == "" {
		slice.Name = slice.Labels[discoveryv1.LabelServiceName] + "-" + strings.ToLower(string(slice.AddressType))
	}
	if len(slice.Ports) == 0 {
		slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080),
			Protocol: ptr.To(corev1.ProtocolTCP)}}
	}
	return slice
}
