package backendtest

import (
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// ClusterSize is a number of services, at most 65536, and of endpoints of each, at most 16. Service i has one port and
// pods of its own.
type ClusterSize struct {
	Services, Endpoints int
	// Affinity is the timeout of the session affinity that all services have; 0: none.
	Affinity time.Duration
}

// Sizes returns sizes with the same number of endpoints of each service.
func Sizes(endpoints int, services ...int) []ClusterSize {
	sizes := make([]ClusterSize, 0, len(services))
	for _, n := range services {
		sizes = append(sizes, ClusterSize{Services: n, Endpoints: endpoints})
	}
	return sizes
}

// String returns for example "1000x10".
func (c ClusterSize) String() string { return fmt.Sprintf("%dx%d", c.Services, c.Endpoints) }

// Service returns the i-th service, which may also be one more than there are.
func (c ClusterSize) Service(i int) *model.Service {
	name := model.ServiceName{Namespace: "bench", Name: fmt.Sprintf("service-%d", i)}
	vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true})
	return &model.Service{Name: name, ClusterIPs: []netip.Addr{vip}, SessionAffinityTimeout: c.Affinity,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80,
			Routes: model.PerFamily[model.Routes]{IPv4: routes}}}}
}

// Endpoint returns the j-th endpoint of the i-th service. The first one of every hundredth service is on this node.
func (c ClusterSize) Endpoint(i, j int) *model.Endpoint {
	port := model.PortName{Service: c.Service(i).Name, Port: "http", Protocol: model.TCP}
	n := i*16 + j
	local := j == 0 && i%100 == 0
	pod := netip.AddrFrom4([4]byte{10, byte(128 + n>>16), byte(n >> 8), byte(n)})
	node := "other"
	if local {
		node = "bench"
		pod = netip.AddrFrom4([4]byte{10, 244, byte(i / 100), 9})
	}
	return &model.Endpoint{Port: port, Target: netip.AddrPortFrom(pod, 8080), Sets: model.ClusterSet, Ready: true,
		Serving: true, Local: local, Node: node}
}

// Node returns the node of the cluster.
func (c ClusterSize) Node() *model.Node {
	return &model.Node{Name: "bench", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		LocalPods: model.LocalPods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
}

// Set sets all of it.
func (c ClusterSize) Set(d Setter) {
	d.SetNode(c.Node())
	for i := range c.Services {
		d.SetService(c.Service(i))
		for j := range c.Endpoints {
			d.SetEndpoint(c.Endpoint(i, j))
		}
	}
}

// ReplaceEndpoint makes wave n of those in which one endpoint is removed and another one added, as when a pod is
// replaced; every second wave undoes that.
func (c ClusterSize) ReplaceEndpoint(d Setter, n int) {
	i := n / 2 * 7 % c.Services
	gone, come := c.Endpoint(i, 3), c.Endpoint(i, 14)
	if n%2 == 1 {
		gone, come = come, gone
	}
	d.DeleteEndpoint(gone.Key())
	d.SetEndpoint(come)
}

// AddOrDeleteService makes wave n of those of which one adds a service with its endpoints and the next one deletes it.
func (c ClusterSize) AddOrDeleteService(d Setter, n int) {
	s := c.Service(c.Services)
	if n%2 == 0 {
		d.SetService(s)
	}
	for j := range c.Endpoints {
		if ep := c.Endpoint(c.Services, j); n%2 == 0 {
			d.SetEndpoint(ep)
		} else {
			d.DeleteEndpoint(ep.Key())
		}
	}
	if n%2 == 1 {
		d.DeleteService(s.Name)
	}
}
