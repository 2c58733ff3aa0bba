package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Service describes a service of a case. The zero value is a dual-stack service "web" with a cluster IP, port 80 for
// TCP and UDP, and no endpoints.
type Service struct {
	Name string
	// Slot determines the addresses and node ports: services of one state need different slots. Default: the index in
	// the list.
	Slot      int
	Families  []model.Family // default: all
	Ports     []ServicePort
	Endpoints []Endpoint

	NodePort, ExternalIP, VIP    bool
	ExternalLocal, InternalLocal bool
	HealthCheck                  uint16 // the node port of health checks, if there are any
	// VIPByProxy: the load balancer does not deliver to the VIP (ipMode Proxy), and OtherProxy: the label
	// service-proxy-name leaves the service to another program.
	VIPByProxy, OtherProxy bool
	// SlicePrefix begins the names of the service's slices.
	SlicePrefix string
	Ranges      []SourceRange
	Affinity    time.Duration // whole seconds, as in the API

	Created time.Time
	// The contested address is one that several services may list, as an external IP or as a VIP.
	ContestsExternalIP, ContestsVIP bool
	// ListsNode adds the node's address to the external IPs, and ListsOther that of another node.
	ListsNode, ListsOther bool
}

// ServicePort describes a port. Only the protocol has no default.
type ServicePort struct {
	Name     string
	Protocol model.Protocol
	Number   uint16 // default 80
	Target   uint16 // default serverPort
	// Endpoints of this port, instead of the service's
	Endpoints []Endpoint
}

// Endpoint describes an endpoint: a host that serves the service's ports.
type Endpoint struct {
	At     string
	Target uint16 // default: the port's
	Phase  Phase
	// Elsewhere: the endpoint's topology hint names another zone than the node's. If a port has such an endpoint, its
	// other endpoints have hints for the node's zone (S22).
	Elsewhere bool
	// OnlyNode: the endpoint has a topology hint for that node as well.
	OnlyNode string
	// Before and after are further entries of the same address in the slice, around this one.
	Before, After []Phase
}

// Phase stands for the conditions of an endpoint.
type Phase int

const (
	ready Phase = iota
	Terminating
	Unready
)

// SourceRange is a load-balancer source range, by the hosts in it.
type SourceRange struct {
	Host string       // only that host
	Pods bool         // all local pods
	Only model.Family // only in this family; 0: in both
}

// At returns ready endpoints at these hosts.
func At(hosts ...string) []Endpoint {
	var eps []Endpoint
	for _, p := range hosts {
		eps = append(eps, Endpoint{At: p})
	}
	return eps
}

// InPhase returns endpoints in a phase at these hosts.
func InPhase(ph Phase, hosts ...string) []Endpoint {
	eps := At(hosts...)
	for i := range eps {
		eps[i].Phase = ph
	}
	return eps
}

// The first node port. No client uses it or a higher node port as its source port.
const firstNodePort = network.FirstReservedPort

// ExternalIPs and vips are the ranges of the services' other addresses. No host in the network has one of them.
func ExternalIPs(f model.Family) netip.Prefix { return inFamily(f, "192.0.2.0/24", "2001:db8:e::/64") }
func vips(f model.Family) netip.Prefix        { return inFamily(f, "198.51.100.0/24", "2001:db8:1b::/64") }

func inFamily(f model.Family, v4, v6 string) netip.Prefix {
	if f == model.IPv6 {
		return netip.MustParsePrefix(v6)
	}
	return netip.MustParsePrefix(v4)
}

// DualStack returns both families.
func DualStack() []model.Family { all := model.Families(); return all[:] }

const firstSlot = 1

// WithDefaults returns the service with its defaults filled in. index is its position in the state.
func (s Service) WithDefaults(index int) Service {
	if s.Name == "" {
		s.Name = "web"
	}
	if s.Slot == 0 {
		s.Slot = firstSlot + index
	}
	if s.Families == nil {
		s.Families = DualStack()
	}
	if s.Ports == nil {
		s.Ports = []ServicePort{{Protocol: model.TCP}, {Protocol: model.UDP}}
	}
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == "" {
			p.Name = fmt.Sprintf("p%d", i)
		}
		if p.Number == 0 {
			p.Number = 80
		}
		if p.Target == 0 {
			p.Target = network.ServerPort
		}
		if p.Endpoints == nil {
			p.Endpoints = s.Endpoints
		}
		p.Endpoints = slices.Clone(p.Endpoints)
		for j := range p.Endpoints {
			if p.Endpoints[j].Target == 0 {
				p.Endpoints[j].Target = p.Target
			}
		}
	}
	return s
}

func (s Service) clusterIP(f model.Family) netip.Addr {
	return network.Nth(network.ClusterIPs(f), 10+s.Slot)
}

func (s Service) externalAddr(f model.Family) netip.Addr {
	return network.Nth(ExternalIPs(f), 10+s.Slot)
}

// VIPAddr is the address of its load balancer.
func (s Service) VIPAddr(f model.Family) netip.Addr { return network.Nth(vips(f), 10+s.Slot) }

// ContestedAddr is the address that several services may list.
func ContestedAddr(f model.Family) netip.Addr { return network.Nth(ExternalIPs(f), 220) }

// NodePortOf returns the node port of the port with that index.
func (s Service) NodePortOf(index int) uint16 {
	return uint16(firstNodePort + 10*s.Slot + index)
}

// String describes the range by its hosts.
func (r SourceRange) String() string {
	who := r.Host
	if r.Pods {
		who = "the local pods"
	}
	if r.Only != 0 {
		who += fmt.Sprintf(" (%v)", r.Only)
	}
	return who
}

// resolve returns the range's prefix in a family.
func (r SourceRange) resolve(f model.Family) netip.Prefix {
	if r.Pods {
		return network.PlanOf(f).LocalPods
	}
	return network.HostPrefix(network.HostNamed(r.Host).Addr(f))
}

// Objects returns the Services and EndpointSlices of services in a cluster with these families. It fails if a service
// is inconsistent.
func Objects(services []Service, families []model.Family) ([]metav1.Object, error) {
	var objects []metav1.Object
	names, slots := map[string]bool{}, map[int]string{}
	for i, spec := range services {
		spec = spec.WithDefaults(i)
		if other, taken := slots[spec.Slot]; taken {
			return nil, fmt.Errorf("services %s and %s have the same addresses", other, spec.Name)
		}
		if names[spec.Name] {
			return nil, fmt.Errorf("two services are named %s", spec.Name)
		}
		names[spec.Name], slots[spec.Slot] = true, spec.Name
		spec.Families = slices.DeleteFunc(slices.Clone(spec.Families),
			func(f model.Family) bool { return !slices.Contains(families, f) })
		if len(spec.Families) == 0 {
			continue
		}
		objects = append(append(objects, spec.object()), spec.slices()...)
	}
	return objects, nil
}

// object returns the Service object.
func (s Service) object() metav1.Object {
	b := kube.Service(s.Name).Created(s.Created)
	for i, p := range s.Ports {
		addPort(b, p.Name, p.Number, p.Protocol)
		if s.NodePort {
			b.NodePort(int32(s.NodePortOf(i)))
		}
	}
	if s.InternalLocal {
		b.InternalLocal()
	}
	if s.ExternalLocal {
		b.ExternalLocal()
	}
	if s.HealthCheck != 0 {
		b.HealthCheckNodePort(int32(s.HealthCheck))
	}
	if s.Affinity > 0 {
		b.Affinity(int32(s.Affinity / time.Second))
	}
	var ips []string
	for _, f := range s.Families {
		ips = append(ips, s.clusterIP(f).String())
		if s.ExternalIP {
			b.ExternalIP(s.externalAddr(f).String())
		}
		if s.VIP {
			b.LoadBalancerIP(s.VIPAddr(f).String())
		}
		if s.ListsNode {
			b.ExternalIP(network.PlanOf(f).HostAddresses()[0].String())
		}
		if s.ListsOther {
			b.ExternalIP(network.HostNamed(network.OtherNode).Addr(f).String())
		}
		if s.ContestsExternalIP {
			b.ExternalIP(ContestedAddr(f).String())
		}
		if s.ContestsVIP {
			b.LoadBalancerIP(ContestedAddr(f).String())
		}
		for _, r := range s.Ranges {
			if r.Only == 0 || r.Only == f {
				b.SourceRange(r.resolve(f).String())
			}
		}
	}
	if s.OtherProxy {
		b.Label(LabelServiceProxyName, "another")
	}
	svc := b.ClusterIP(ips...).Build()
	if s.VIPByProxy {
		mode := corev1.LoadBalancerIPModeProxy
		for i := range svc.Status.LoadBalancer.Ingress {
			svc.Status.LoadBalancer.Ingress[i].IPMode = &mode
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		svc.Spec.AllocateLoadBalancerNodePorts = &s.NodePort // otherwise an API server allocates node ports
	}
	return svc
}

// LabelServiceProxyName is the label of a Service that a program other than the node's usual proxy serves.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// The zones in topology hints: the node's, and another one.
const zoneHere, zoneElsewhere = "here", "elsewhere"

// slices returns one EndpointSlice per endpoint, port and family, because each may have another target port.
func (s Service) slices() []metav1.Object {
	var objects []metav1.Object
	for _, p := range s.Ports {
		hinted := slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Elsewhere })
		for i, e := range p.Endpoints {
			host := network.HostNamed(e.At)
			for _, f := range s.Families {
				b := kube.EndpointSlice(s.Name).Name(
					strings.ToLower(fmt.Sprintf("%s%s-%s-%d-%v", s.SlicePrefix, s.Name, p.Name, i, f)))
				addPort(b, p.Name, e.Target, p.Protocol)
				for _, ph := range e.Before {
					addEntry(b, host, f, ph)
				}
				addEntry(b, host, f, e.Phase)
				if e.OnlyNode != "" {
					b.ForNodes(e.OnlyNode)
				}
				switch {
				case e.Elsewhere:
					b.ForZones(zoneElsewhere)
				case hinted:
					b.ForZones(zoneHere)
				}
				for _, ph := range e.After {
					addEntry(b, host, f, ph)
				}
				objects = append(objects, b.Build())
			}
		}
	}
	return objects
}

// addEntry adds a host as an endpoint.
func addEntry(b *kube.EndpointSliceBuilder, host network.Host, f model.Family, ph Phase) {
	b.Endpoint(host.Addr(f).String()).OnNode(network.OtherNode)
	if host.Kind == oracle.LocalPod || host.Kind == oracle.Node {
		b.OnNode(network.TheNode)
	}
	switch ph {
	case Terminating:
		b.Terminating()
	case Unready:
		b.NotReady()
	}
}

// addPort adds a port of any protocol to a Service or an EndpointSlice builder.
func addPort[B interface {
	Port(name string, number int32) B
	UDPPort(name string, number int32) B
	SCTPPort(name string, number int32) B
}](b B, name string, number uint16, protocol model.Protocol) {
	add := b.Port
	switch protocol {
	case model.UDP:
		add = b.UDPPort
	case model.SCTP:
		add = b.SCTPPort
	}
	add(name, int32(number))
}
