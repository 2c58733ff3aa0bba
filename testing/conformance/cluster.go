package conformance

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

// service describes a service of a case. The zero value is a dual-stack service "web" with a cluster IP, port 80 for
// TCP and UDP, and no endpoints.
type service struct {
	name string
	// slot determines the addresses and node ports: services of one state need different slots. Default: the index in the
	// list.
	slot      int
	families  []model.Family // default: all
	ports     []servicePort
	endpoints []endpoint

	nodePort, externalIP, vip    bool
	externalLocal, internalLocal bool
	healthCheck                  uint16 // the node port of health checks, if there are any
	// vipByProxy: the load balancer does not deliver to the VIP (ipMode Proxy), and otherProxy: the label
	// service-proxy-name leaves the service to another program.
	vipByProxy, otherProxy bool
	// slicePrefix begins the names of the service's slices.
	slicePrefix string
	ranges      []sourceRange
	affinity    time.Duration // whole seconds, as in the API

	created time.Time
	// The contested address is one that several services may list, as an external IP or as a VIP.
	contestsExternalIP, contestsVIP bool
	// listsNode adds the node's address to the external IPs, and listsOther that of another node.
	listsNode, listsOther bool
}

// servicePort describes a port. Only the protocol has no default.
type servicePort struct {
	name     string
	protocol model.Protocol
	number   uint16 // default 80
	target   uint16 // default serverPort
	// endpoints of this port, instead of the service's
	endpoints []endpoint
}

// endpoint describes an endpoint: a place that serves the service's ports.
type endpoint struct {
	at     string
	target uint16 // default: the port's
	phase  phase
	// elsewhere: the endpoint's topology hint names another zone than the node's. If a port has such an endpoint, its
	// other endpoints have hints for the node's zone (S22).
	elsewhere bool
	// onlyNode: the endpoint has a topology hint for that node as well.
	onlyNode string
	// before and after are further entries of the same address in the slice, around this one.
	before, after []phase
}

// phase stands for the conditions of an endpoint.
type phase int

const (
	ready phase = iota
	terminating
	unready
)

// sourceRange is a load-balancer source range, by the places in it.
type sourceRange struct {
	place string       // only that place
	pods  bool         // all local pods
	only  model.Family // only in this family; 0: in both
}

func at(places ...string) []endpoint {
	var eps []endpoint
	for _, p := range places {
		eps = append(eps, endpoint{at: p})
	}
	return eps
}

func inPhase(ph phase, places ...string) []endpoint {
	eps := at(places...)
	for i := range eps {
		eps[i].phase = ph
	}
	return eps
}

// The first node port. No client uses it or a higher node port as its source port.
const firstNodePort = network.FirstReservedPort

// The ranges of the services' other addresses. No host in the network has one of these addresses.
func externalIPs(f model.Family) netip.Prefix { return inFamily(f, "192.0.2.0/24", "2001:db8:e::/64") }
func vips(f model.Family) netip.Prefix        { return inFamily(f, "198.51.100.0/24", "2001:db8:1b::/64") }

func inFamily(f model.Family, v4, v6 string) netip.Prefix {
	if f == model.IPv6 {
		return netip.MustParsePrefix(v6)
	}
	return netip.MustParsePrefix(v4)
}

func dualStack() []model.Family { all := model.Families(); return all[:] }

const firstSlot = 1

func (s service) withDefaults(index int) service {
	if s.name == "" {
		s.name = "web"
	}
	if s.slot == 0 {
		s.slot = firstSlot + index
	}
	if s.families == nil {
		s.families = dualStack()
	}
	if s.ports == nil {
		s.ports = []servicePort{{protocol: model.TCP}, {protocol: model.UDP}}
	}
	s.ports = slices.Clone(s.ports)
	for i := range s.ports {
		p := &s.ports[i]
		if p.name == "" {
			p.name = fmt.Sprintf("p%d", i)
		}
		if p.number == 0 {
			p.number = 80
		}
		if p.target == 0 {
			p.target = serverPort
		}
		if p.endpoints == nil {
			p.endpoints = s.endpoints
		}
		p.endpoints = slices.Clone(p.endpoints)
		for j := range p.endpoints {
			if p.endpoints[j].target == 0 {
				p.endpoints[j].target = p.target
			}
		}
	}
	return s
}

func (s service) clusterIP(f model.Family) netip.Addr {
	return network.Nth(network.ClusterIPs(f), 10+s.slot)
}

func (s service) externalAddr(f model.Family) netip.Addr {
	return network.Nth(externalIPs(f), 10+s.slot)
}

func (s service) vipAddr(f model.Family) netip.Addr { return network.Nth(vips(f), 10+s.slot) }

// contestedAddr is the address that several services may list.
func contestedAddr(f model.Family) netip.Addr { return network.Nth(externalIPs(f), 220) }

// nodePortOf returns the node port of the port with that index.
func (s service) nodePortOf(index int) uint16 {
	return uint16(firstNodePort + 10*s.slot + index)
}

// String describes the range by its places.
func (r sourceRange) String() string {
	who := r.place
	if r.pods {
		who = "the local pods"
	}
	if r.only != 0 {
		who += fmt.Sprintf(" (%v)", r.only)
	}
	return who
}

// resolve returns the range's prefix in a family.
func (r sourceRange) resolve(f model.Family) netip.Prefix {
	if r.pods {
		return network.PlanOf(f).LocalPods
	}
	return network.HostPrefix(network.PlaceNamed(r.place).Addr(f))
}

// objectsOf returns the Services and EndpointSlices of services in a cluster with these families. It fails if a service
// is inconsistent.
func objectsOf(services []service, families []model.Family) ([]metav1.Object, error) {
	var objects []metav1.Object
	names, slots := map[string]bool{}, map[int]string{}
	for i, spec := range services {
		spec = spec.withDefaults(i)
		if other, taken := slots[spec.slot]; taken {
			return nil, fmt.Errorf("services %s and %s have the same addresses", other, spec.name)
		}
		if names[spec.name] {
			return nil, fmt.Errorf("two services are named %s", spec.name)
		}
		names[spec.name], slots[spec.slot] = true, spec.name
		spec.families = slices.DeleteFunc(slices.Clone(spec.families),
			func(f model.Family) bool { return !slices.Contains(families, f) })
		if len(spec.families) == 0 {
			continue
		}
		objects = append(append(objects, spec.object()), spec.slices()...)
	}
	return objects, nil
}

// object returns the Service object.
func (s service) object() metav1.Object {
	b := kube.Service(s.name).Created(s.created)
	for i, p := range s.ports {
		addPort(b, p.name, p.number, p.protocol)
		if s.nodePort {
			b.NodePort(int32(s.nodePortOf(i)))
		}
	}
	if s.internalLocal {
		b.InternalLocal()
	}
	if s.externalLocal {
		b.ExternalLocal()
	}
	if s.healthCheck != 0 {
		b.HealthCheckNodePort(int32(s.healthCheck))
	}
	if s.affinity > 0 {
		b.Affinity(int32(s.affinity / time.Second))
	}
	var ips []string
	for _, f := range s.families {
		ips = append(ips, s.clusterIP(f).String())
		if s.externalIP {
			b.ExternalIP(s.externalAddr(f).String())
		}
		if s.vip {
			b.LoadBalancerIP(s.vipAddr(f).String())
		}
		if s.listsNode {
			b.ExternalIP(network.PlanOf(f).HostAddresses()[0].String())
		}
		if s.listsOther {
			b.ExternalIP(network.PlaceNamed(otherNode).Addr(f).String())
		}
		if s.contestsExternalIP {
			b.ExternalIP(contestedAddr(f).String())
		}
		if s.contestsVIP {
			b.LoadBalancerIP(contestedAddr(f).String())
		}
		for _, r := range s.ranges {
			if r.only == 0 || r.only == f {
				b.SourceRange(r.resolve(f).String())
			}
		}
	}
	if s.otherProxy {
		b.Label(labelServiceProxyName, "another")
	}
	svc := b.ClusterIP(ips...).Build()
	if s.vipByProxy {
		mode := corev1.LoadBalancerIPModeProxy
		for i := range svc.Status.LoadBalancer.Ingress {
			svc.Status.LoadBalancer.Ingress[i].IPMode = &mode
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		svc.Spec.AllocateLoadBalancerNodePorts = &s.nodePort // otherwise an API server allocates node ports
	}
	return svc
}

// labelServiceProxyName is the label of a Service that another program than the node's usual proxy serves.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// The zones in topology hints: the node's, and another one.
const zoneHere, zoneElsewhere = "here", "elsewhere"

// slices returns one EndpointSlice per endpoint, port and family, because each may have another target port.
func (s service) slices() []metav1.Object {
	var objects []metav1.Object
	for _, p := range s.ports {
		hinted := slices.ContainsFunc(p.endpoints, func(e endpoint) bool { return e.elsewhere })
		for i, e := range p.endpoints {
			place := network.PlaceNamed(e.at)
			for _, f := range s.families {
				b := kube.EndpointSlice(s.name).Name(
					strings.ToLower(fmt.Sprintf("%s%s-%s-%d-%v", s.slicePrefix, s.name, p.name, i, f)))
				addPort(b, p.name, e.target, p.protocol)
				for _, ph := range e.before {
					addEntry(b, place, f, ph)
				}
				addEntry(b, place, f, e.phase)
				if e.onlyNode != "" {
					b.ForNodes(e.onlyNode)
				}
				switch {
				case e.elsewhere:
					b.ForZones(zoneElsewhere)
				case hinted:
					b.ForZones(zoneHere)
				}
				for _, ph := range e.after {
					addEntry(b, place, f, ph)
				}
				objects = append(objects, b.Build())
			}
		}
	}
	return objects
}

// addEntry adds a place as an endpoint.
func addEntry(b *kube.EndpointSliceBuilder, place network.Place, f model.Family, ph phase) {
	b.Endpoint(place.Addr(f).String()).OnNode(otherNode)
	if place.Kind == oracle.LocalPod || place.Kind == oracle.Node {
		b.OnNode(theNode)
	}
	switch ph {
	case terminating:
		b.Terminating()
	case unready:
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
