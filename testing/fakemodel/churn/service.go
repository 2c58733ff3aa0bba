package churn

import (
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// service is a service and the pods behind it.
type service struct {
	slot     int // decides its name and addresses
	name     string
	revision string // in the names of its pods; another one for each roll-out
	replicas int    // the wanted number of pods

	clusterIPs, externalIPs, loadBalancerIPs []netip.Addr
	sourceRanges                             []string
	nodePort                                 int32
	udp                                      bool
	internalLocal, externalLocal             bool
	affinity                                 int32 // seconds
	hints                                    hints

	groups    []*group
	nextGroup int
}

// group is the pods that are in one slice of each family.
type group struct {
	number  int
	pods    []*pod
	touched int // the number of updates that changed nothing
}

// groupSize is the maximum number of endpoints that Kubernetes puts in a slice.
const groupSize = 100

type hints uint8

const (
	noHints hints = iota
	zoneHints
	nodeHints
)

// pod is one pod of a service.
type pod struct {
	name    string
	service *service
	group   *group
	node    *node
	place   int
	ips     []netip.Addr
	zone    string // of the node when the pod came
	phase   phase
	hinted  bool
	// unstable: the pod is in Cluster.unstable
	unstable bool
}

type phase uint8

const (
	starting phase = iota // not ready yet, or not any more
	ready
	draining // terminating and still serving
	stopping // terminating and no longer serving
	gone
)

// addService adds a service to the cluster whose pods are all in one phase.
func (c *Cluster) addService(slotIndex int, phase phase) *service {
	slot := c.slots[slotIndex]
	c.slots[slotIndex] = c.slots[len(c.slots)-1]
	c.slots = c.slots[:len(c.slots)-1]
	s := &service{
		slot: slot, name: fmt.Sprintf("svc-%d", slot), revision: c.text(9), replicas: c.opts.Endpoints,
		clusterIPs: c.opts.clusterIPs(2*slot + c.random.IntN(2)),
		udp:        c.random.IntN(4) == 0,
	}
	s.addGroup()
	for range 3 { // a mixture of services from the start
		c.changePolicy(s)
	}
	for range s.replicas {
		if p := c.addPod(s); p != nil {
			c.setPhase(p, phase)
		}
	}
	c.services = append(c.services, s)
	return s
}

func (s *service) addGroup() *group {
	s.nextGroup++
	g := &group{number: s.nextGroup}
	s.groups = append(s.groups, g)
	return g
}

// addPod adds a starting pod, in a slice with room. It returns nil if no node has a place.
func (c *Cluster) addPod(s *service) *pod {
	n, place, ok := c.takePlace()
	if !ok {
		return nil
	}
	var g *group
	for _, candidate := range s.groups {
		if len(candidate.pods) < groupSize {
			g = candidate
			break
		}
	}
	if g == nil {
		g = s.addGroup()
	}
	p := &pod{
		name:    fmt.Sprintf("%s-%s-%s", s.name, s.revision, c.text(5)),
		service: s, group: g, node: n, place: place, ips: c.podIPs(n, place), zone: n.Zone,
		hinted: c.random.IntN(20) > 0,
	}
	g.pods = append(g.pods, p)
	return p
}

// setPhase puts a pod in a phase. Pods that are not ready are remembered: they will go on to another phase.
func (c *Cluster) setPhase(p *pod, to phase) {
	p.phase = to
	if to != ready && !p.unstable {
		p.unstable = true
		c.unstable = append(c.unstable, p)
	}
}

// removePod removes a pod, and its group if it was the last one in it.
func (c *Cluster) removePod(p *pod) {
	p.phase = gone
	p.node.free = append(p.node.free, p.place)
	p.group.remove(p)
	p.service.dropIfEmpty(p.group)
}

// dropIfEmpty removes a group if it is empty, unless it is the only one.
func (s *service) dropIfEmpty(g *group) {
	if len(g.pods) == 0 && len(s.groups) > 1 {
		i := slices.Index(s.groups, g)
		s.groups = slices.Delete(s.groups, i, i+1)
	}
}

func (g *group) remove(p *pod) {
	i := slices.Index(g.pods, p)
	g.pods = slices.Delete(g.pods, i, i+1)
}

// has reports whether the group belongs to the service; otherwise its slices have to be deleted.
func (s *service) has(g *group) bool { return slices.Contains(s.groups, g) }

// external reports whether the service has addresses to which the external traffic policy applies.
func (s *service) external() bool {
	return s.nodePort != 0 || len(s.externalIPs) > 0 || len(s.loadBalancerIPs) > 0
}

func (s *service) object() metav1.Object {
	b := kube.Service(namespace+"/"+s.name).ClusterIP(texts(s.clusterIPs)...).Port("http", 80)
	if s.nodePort != 0 {
		b.NodePort(s.nodePort)
	}
	if s.udp {
		b.UDPPort("dns", 53)
	}
	b.ExternalIP(texts(s.externalIPs)...)
	if len(s.loadBalancerIPs) > 0 {
		b.LoadBalancerIP(texts(s.loadBalancerIPs)...).SourceRange(s.sourceRanges...)
	}
	if s.internalLocal {
		b.InternalLocal()
	}
	if s.externalLocal && s.external() {
		b.ExternalLocal()
	}
	if s.affinity > 0 {
		b.Affinity(s.affinity)
	}
	return b.Build()
}

// slicesOf returns the slices of a group, one for each family.
func (c *Cluster) slicesOf(s *service, g *group) []*discoveryv1.EndpointSlice {
	var list []*discoveryv1.EndpointSlice
	for family := range s.clusterIPs {
		addressType := discoveryv1.AddressTypeIPv4
		if family > 0 {
			addressType = discoveryv1.AddressTypeIPv6
		}
		b := kube.EndpointSlice(namespace+"/"+s.name).Name(fmt.Sprintf("%s-%d-ipv%d", s.name, g.number, 4+2*family)).
			AddressType(addressType).Port("http", 8080)
		if s.udp {
			b.UDPPort("dns", 5353)
		}
		if g.touched > 0 {
			b.Annotation("churn/touched", fmt.Sprint(g.touched))
		}
		for _, p := range g.pods {
			p.addTo(b, family)
		}
		list = append(list, b.Build())
	}
	return list
}

func (p *pod) addTo(b *kube.EndpointSliceBuilder, family int) {
	b.Endpoint(p.ips[family].String()).OnNode(p.node.Name).Pod(p.name)
	if p.zone != "" {
		b.InZone(p.zone)
	}
	switch p.phase {
	case starting:
		b.NotReady()
	case draining:
		b.Terminating()
	case stopping:
		b.NotServing()
	}
	switch {
	case !p.hinted:
	case p.service.hints == zoneHints && p.zone != "":
		b.ForZones(p.zone)
	case p.service.hints == nodeHints:
		b.ForNodes(p.node.Name)
	}
}
