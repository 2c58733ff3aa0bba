package fakemodel

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// ServiceBuilder builds a [model.Service]. Methods about a port apply to the last one added.
type ServiceBuilder struct {
	svc    model.Service
	policy model.RoutePolicy
}

// Service returns a builder for "namespace/name"; the namespace defaults to "default". The service has a cluster IP
// derived from its name and, unless others are added, the TCP port 80.
func Service(name string) *ServiceBuilder {
	return &ServiceBuilder{svc: model.Service{Name: serviceName(name)}}
}

// UID sets the UID.
func (b *ServiceBuilder) UID(uid string) *ServiceBuilder {
	b.svc.UID = uid
	return b
}

// Created sets the creation time.
func (b *ServiceBuilder) Created(t time.Time) *ServiceBuilder {
	b.svc.Created = t
	return b
}

// Label adds a label.
func (b *ServiceBuilder) Label(key, value string) *ServiceBuilder {
	if b.svc.Labels == nil {
		b.svc.Labels = map[string]string{}
	}
	b.svc.Labels[key] = value
	return b
}

// Annotation adds an annotation.
func (b *ServiceBuilder) Annotation(key, value string) *ServiceBuilder {
	if b.svc.Annotations == nil {
		b.svc.Annotations = map[string]string{}
	}
	b.svc.Annotations[key] = value
	return b
}

// ClusterIP sets the cluster IPs, at most one per family.
func (b *ServiceBuilder) ClusterIP(ips ...string) *ServiceBuilder {
	b.svc.ClusterIPs = addrs(ips)
	return b
}

// ExternalIP adds external IPs.
func (b *ServiceBuilder) ExternalIP(ips ...string) *ServiceBuilder {
	b.svc.ExternalIPs = append(b.svc.ExternalIPs, addrs(ips)...)
	return b
}

// LoadBalancerIP adds VIPs.
func (b *ServiceBuilder) LoadBalancerIP(ips ...string) *ServiceBuilder {
	b.svc.LoadBalancerIPs = append(b.svc.LoadBalancerIPs, addrs(ips)...)
	return b
}

// SourceRange adds load-balancer source ranges.
func (b *ServiceBuilder) SourceRange(cidrs ...string) *ServiceBuilder {
	b.svc.LoadBalancerSourceRanges = append(b.svc.LoadBalancerSourceRanges, prefixes(cidrs)...)
	return b
}

// Port adds a TCP port.
func (b *ServiceBuilder) Port(name string, number uint16) *ServiceBuilder {
	return b.port(name, number, model.TCP)
}

// UDPPort adds a UDP port.
func (b *ServiceBuilder) UDPPort(name string, number uint16) *ServiceBuilder {
	return b.port(name, number, model.UDP)
}

// SCTPPort adds an SCTP port.
func (b *ServiceBuilder) SCTPPort(name string, number uint16) *ServiceBuilder {
	return b.port(name, number, model.SCTP)
}

func (b *ServiceBuilder) port(name string, number uint16, protocol model.Protocol) *ServiceBuilder {
	b.svc.Ports = append(b.svc.Ports, model.ServicePort{Name: name, Port: number, Protocol: protocol})
	return b
}

// NodePort sets the node port of the last port.
func (b *ServiceBuilder) NodePort(number uint16) *ServiceBuilder {
	b.ensurePort()
	b.svc.Ports[len(b.svc.Ports)-1].NodePort = number
	return b
}

// InternalLocal sets the internal traffic policy to Local.
func (b *ServiceBuilder) InternalLocal() *ServiceBuilder {
	b.svc.InternalTrafficPolicy = model.TrafficPolicyLocal
	return b
}

// ExternalLocal sets the external traffic policy to Local.
func (b *ServiceBuilder) ExternalLocal() *ServiceBuilder {
	b.svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
	return b
}

// Affinity enables session affinity.
func (b *ServiceBuilder) Affinity(timeout time.Duration) *ServiceBuilder {
	b.svc.SessionAffinityTimeout = timeout
	return b
}

// HealthCheck adds a health check with the numbers of local endpoints in IPv4 and IPv6.
func (b *ServiceBuilder) HealthCheck(nodePort uint16, localIPv4, localIPv6 int) *ServiceBuilder {
	b.svc.HealthCheck = &model.HealthCheck{NodePort: nodePort,
		LocalEndpoints: model.PerFamily[int]{IPv4: localIPv4, IPv6: localIPv6}}
	return b
}

// NoEndpoints sets the routes of a service without usable endpoints anywhere (S25).
func (b *ServiceBuilder) NoEndpoints() *ServiceBuilder {
	b.policy.NoEndpoints = true
	return b
}

// DetectsLocalPods sets the routes of a node that can detect traffic from its own pods (S30).
func (b *ServiceBuilder) DetectsLocalPods() *ServiceBuilder {
	b.policy.DetectsLocalPods = true
	return b
}

// MasqueradeAll sets routes that masquerade all traffic to cluster IPs (S28).
func (b *ServiceBuilder) MasqueradeAll() *ServiceBuilder {
	b.policy.MasqueradeAll = true
	return b
}

// Build returns the service, with the routes that follow from its fields. It panics with every error if the service is
// invalid: builders are for constant values in tests. For input use [model.NewService].
func (b *ServiceBuilder) Build() *model.Service {
	b.ensurePort()
	svc := b.svc
	if len(svc.ClusterIPs) == 0 {
		svc.ClusterIPs = addrs([]string{kube.DefaultClusterIP(svc.Name.Namespace, svc.Name.Name)})
	}
	svc.Ports = make([]model.ServicePort, len(b.svc.Ports))
	for i, p := range b.svc.Ports {
		p.Routes.IPv4, p.Routes.IPv6 = b.routes(svc, p, model.IPv4), b.routes(svc, p, model.IPv6)
		svc.Ports[i] = p
	}
	return must(model.NewService(svc))
}

func (b *ServiceBuilder) routes(svc model.Service, p model.ServicePort, f model.Family) model.Routes {
	if !svc.ClusterIP(f).IsValid() {
		return model.Routes{}
	}
	policy := b.policy
	policy.ClusterIP = true
	policy.Internal, policy.External = svc.InternalTrafficPolicy, svc.ExternalTrafficPolicy
	policy.ExternalAddresses = p.NodePort != 0
	for _, list := range [][]netip.Addr{svc.ExternalIPs, svc.LoadBalancerIPs} {
		for _, ip := range list {
			policy.ExternalAddresses = policy.ExternalAddresses || model.FamilyOf(ip.Unmap()) == f
		}
	}
	return model.NewRoutes(policy)
}

func (b *ServiceBuilder) ensurePort() {
	if len(b.svc.Ports) == 0 {
		b.Port("", 80)
	}
}

// EndpointBuilder builds a [model.Endpoint].
type EndpointBuilder struct{ ep model.Endpoint }

// Endpoint returns a builder for an endpoint of a port such as "default/web:http/TCP", or "default/web/TCP" if the port
// has no name. By default the endpoint is on another node, ready, and in the Cluster set.
func Endpoint(port, target string) *EndpointBuilder {
	addrPort, err := netip.ParseAddrPort(target)
	if err != nil {
		panic(fmt.Sprintf("fakemodel: endpoint target %q: %v", target, err))
	}
	return &EndpointBuilder{model.Endpoint{Port: portName(port), Target: addrPort, Sets: model.ClusterSet, Ready: true,
		Serving: true}}
}

// Local places the endpoint on this node, and adds it to the Local set.
func (b *EndpointBuilder) Local() *EndpointBuilder {
	b.ep.Local = true
	b.ep.Sets |= model.LocalSet
	return b
}

// OnNode sets the endpoint's node.
func (b *EndpointBuilder) OnNode(name string) *EndpointBuilder {
	b.ep.Node = name
	return b
}

// Sets sets the endpoint's sets, instead of the default ones.
func (b *EndpointBuilder) Sets(sets model.EndpointSets) *EndpointBuilder {
	b.ep.Sets = sets
	return b
}

// Terminating makes the endpoint terminating, not ready, and still serving. Its sets do not change.
func (b *EndpointBuilder) Terminating() *EndpointBuilder {
	b.ep.Ready, b.ep.Serving, b.ep.Terminating = false, true, true
	return b
}

// Build returns the endpoint. It panics if the endpoint is invalid, see [ServiceBuilder.Build].
func (b *EndpointBuilder) Build() *model.Endpoint { return must(model.NewEndpoint(b.ep)) }

// NodeBuilder builds a [model.Node].
type NodeBuilder struct{ node model.Node }

// Node returns a builder for a node.
func Node(name string) *NodeBuilder { return &NodeBuilder{model.Node{Name: name}} }

// Zone sets the topology zone.
func (b *NodeBuilder) Zone(zone string) *NodeBuilder {
	b.node.Zone = zone
	return b
}

// IP adds addresses of the node.
func (b *NodeBuilder) IP(ips ...string) *NodeBuilder {
	b.node.IPs = append(b.node.IPs, addrs(ips)...)
	return b
}

// PodCIDR adds address ranges of the node's pods. To detect local pods by them, also use LocalPods.
func (b *NodeBuilder) PodCIDR(cidrs ...string) *NodeBuilder {
	b.node.PodCIDRs = append(b.node.PodCIDRs, prefixes(cidrs)...)
	return b
}

// ServiceCIDR adds address ranges for cluster IPs.
func (b *NodeBuilder) ServiceCIDR(cidrs ...string) *NodeBuilder {
	b.node.ServiceCIDRs = append(b.node.ServiceCIDRs, prefixes(cidrs)...)
	return b
}

// LocalPods sets the detection of local pods. Services then need DetectsLocalPods.
func (b *NodeBuilder) LocalPods(detector model.LocalPods) *NodeBuilder {
	b.node.LocalPods = detector
	return b
}

// Build returns the node. It panics if the node is invalid, see [ServiceBuilder.Build].
func (b *NodeBuilder) Build() *model.Node { return must(model.NewNode(b.node)) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("fakemodel: %v", err))
	}
	return v
}

func addrs(texts []string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, must(netip.ParseAddr(text)))
	}
	return list
}

func prefixes(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, must(netip.ParsePrefix(text)))
	}
	return list
}

func serviceName(text string) model.ServiceName {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		namespace, name = "default", text
	}
	return model.ServiceName{Namespace: namespace, Name: name}
}

// portName parses the output of model.PortName.String.
func portName(text string) model.PortName {
	i := strings.LastIndex(text, "/")
	if i < 0 {
		panic(fmt.Sprintf("fakemodel: port name %q has no protocol", text))
	}
	service, port, _ := strings.Cut(text[:i], ":")
	return model.PortName{Service: serviceName(service), Port: port, Protocol: must(model.ParseProtocol(text[i+1:]))}
}
