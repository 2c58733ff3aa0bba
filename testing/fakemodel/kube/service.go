package kube

import (
	"hash/fnv"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// ServiceBuilder builds a Service.
type ServiceBuilder struct{ svc corev1.Service }

// Service returns a builder for "namespace/name"; the namespace defaults to "default".
func Service(name string) *ServiceBuilder {
	b := &ServiceBuilder{}
	b.svc.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	b.svc.ObjectMeta = objectMeta(name)
	b.svc.Spec.Type = corev1.ServiceTypeClusterIP
	b.svc.Spec.SessionAffinity = corev1.ServiceAffinityNone
	b.svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	return b
}

// UID sets the UID.
func (b *ServiceBuilder) UID(uid string) *ServiceBuilder {
	b.svc.UID = types.UID(uid)
	return b
}

// Created sets the creation time, truncated to the second like an API server's.
func (b *ServiceBuilder) Created(t time.Time) *ServiceBuilder {
	b.svc.CreationTimestamp = metav1.Unix(t.Unix(), 0)
	return b
}

// Label adds a label.
func (b *ServiceBuilder) Label(key, value string) *ServiceBuilder {
	metav1.SetMetaDataLabel(&b.svc.ObjectMeta, key, value)
	return b
}

// Annotation adds an annotation.
func (b *ServiceBuilder) Annotation(key, value string) *ServiceBuilder {
	metav1.SetMetaDataAnnotation(&b.svc.ObjectMeta, key, value)
	return b
}

// Type sets the type. NodePort and LoadBalancerIP set it too.
func (b *ServiceBuilder) Type(t corev1.ServiceType) *ServiceBuilder {
	b.svc.Spec.Type = t
	return b
}

// ClusterIP sets the cluster IPs, at most one per family. "None" makes the service headless.
func (b *ServiceBuilder) ClusterIP(ips ...string) *ServiceBuilder {
	b.svc.Spec.ClusterIPs = ips
	return b
}

// ExternalIP adds external IPs.
func (b *ServiceBuilder) ExternalIP(ips ...string) *ServiceBuilder {
	b.svc.Spec.ExternalIPs = append(b.svc.Spec.ExternalIPs, ips...)
	return b
}

// LoadBalancerIP adds load-balancer ingress addresses with ipMode VIP, and sets the type to LoadBalancer.
func (b *ServiceBuilder) LoadBalancerIP(ips ...string) *ServiceBuilder {
	mode := corev1.LoadBalancerIPModeVIP
	status := &b.svc.Status.LoadBalancer
	for _, ip := range ips {
		status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
	}
	return b.Type(corev1.ServiceTypeLoadBalancer)
}

// SourceRange adds load-balancer source ranges.
func (b *ServiceBuilder) SourceRange(cidrs ...string) *ServiceBuilder {
	b.svc.Spec.LoadBalancerSourceRanges = append(b.svc.Spec.LoadBalancerSourceRanges, cidrs...)
	return b
}

// Port adds a TCP port, whose target port is its own number; the slices determine the endpoints' real port.
func (b *ServiceBuilder) Port(name string, number int32) *ServiceBuilder {
	return b.port(name, number, corev1.ProtocolTCP)
}

// UDPPort adds a UDP port.
func (b *ServiceBuilder) UDPPort(name string, number int32) *ServiceBuilder {
	return b.port(name, number, corev1.ProtocolUDP)
}

// SCTPPort adds an SCTP port.
func (b *ServiceBuilder) SCTPPort(name string, number int32) *ServiceBuilder {
	return b.port(name, number, corev1.ProtocolSCTP)
}

func (b *ServiceBuilder) port(name string, number int32, protocol corev1.Protocol) *ServiceBuilder {
	b.svc.Spec.Ports = append(b.svc.Spec.Ports, corev1.ServicePort{
		Name: name, Port: number, Protocol: protocol, TargetPort: intstr.FromInt32(number)})
	return b
}

// NodePort sets the node port of the last port, and changes the type ClusterIP to NodePort.
func (b *ServiceBuilder) NodePort(number int32) *ServiceBuilder {
	b.ensurePort()
	b.svc.Spec.Ports[len(b.svc.Spec.Ports)-1].NodePort = number
	if b.svc.Spec.Type == corev1.ServiceTypeClusterIP {
		b.svc.Spec.Type = corev1.ServiceTypeNodePort
	}
	return b
}

// InternalLocal sets internalTrafficPolicy Local.
func (b *ServiceBuilder) InternalLocal() *ServiceBuilder {
	b.svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	return b
}

// ExternalLocal sets externalTrafficPolicy Local.
func (b *ServiceBuilder) ExternalLocal() *ServiceBuilder {
	b.svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	return b
}

// HealthCheckNodePort sets the health-check port.
func (b *ServiceBuilder) HealthCheckNodePort(number int32) *ServiceBuilder {
	b.svc.Spec.HealthCheckNodePort = number
	return b
}

// Affinity enables session affinity by client IP.
func (b *ServiceBuilder) Affinity(seconds int32) *ServiceBuilder {
	b.svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	b.svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	return b
}

// Build returns the service.
func (b *ServiceBuilder) Build() *corev1.Service {
	b.ensurePort()
	svc := b.svc.DeepCopy()
	spec := &svc.Spec
	if len(spec.ClusterIPs) == 0 && spec.Type != corev1.ServiceTypeExternalName {
		spec.ClusterIPs = []string{DefaultClusterIP(svc.Namespace, svc.Name)}
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	spec.IPFamilies = nil
	for _, ip := range spec.ClusterIPs {
		spec.IPFamilies = append(spec.IPFamilies, ipFamily(ip))
	}
	spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	if len(spec.ClusterIPs) > 1 {
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	external := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0
	if external && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	return svc
}

func (b *ServiceBuilder) ensurePort() {
	if len(b.svc.Spec.Ports) == 0 {
		b.Port("", 80)
	}
}

// DefaultClusterIP returns the default cluster IP of a service, in 10.96.0.0/16: always the same for a name, and
// usually different for different names.
func DefaultClusterIP(namespace, name string) string {
	h := fnv.New32a()
	h.Write([]byte(namespace + "/" + name))
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{10, 96, byte(sum >> 8), byte(sum)}).String()
}

func objectMeta(name string) metav1.ObjectMeta {
	namespace, base, found := strings.Cut(name, "/")
	if !found {
		namespace, base = metav1.NamespaceDefault, name
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: base}
}

func ipFamily(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
