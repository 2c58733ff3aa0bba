package kube

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeBuilder builds a Node.
type NodeBuilder struct{ node corev1.Node }

// Node returns a builder for a Node.
func Node(name string) *NodeBuilder {
	b := &NodeBuilder{}
	b.node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	b.node.Name = name
	b.node.Labels = map[string]string{corev1.LabelHostname: name}
	return b
}

// Label adds a label.
func (b *NodeBuilder) Label(key, value string) *NodeBuilder {
	b.node.Labels[key] = value
	return b
}

// Zone sets the label of the topology zone.
func (b *NodeBuilder) Zone(zone string) *NodeBuilder { return b.Label(corev1.LabelTopologyZone, zone) }

// InternalIP adds addresses of type InternalIP.
func (b *NodeBuilder) InternalIP(ips ...string) *NodeBuilder {
	for _, ip := range ips {
		b.node.Status.Addresses = append(b.node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return b
}

// PodCIDR adds ranges of pod addresses.
func (b *NodeBuilder) PodCIDR(cidrs ...string) *NodeBuilder {
	b.node.Spec.PodCIDRs = append(b.node.Spec.PodCIDRs, cidrs...)
	return b
}

// Taint adds a NoSchedule taint.
func (b *NodeBuilder) Taint(key string) *NodeBuilder {
	b.node.Spec.Taints = append(b.node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	return b
}

// Build returns the node.
func (b *NodeBuilder) Build() *corev1.Node {
	node := b.node.DeepCopy()
	if len(node.Spec.PodCIDRs) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	return node
}

// ServiceCIDR returns a ServiceCIDR.
func ServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}
