package cluster

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Destination is the kind of address that a client connects to.
type Destination int

const (
	ToClusterIP Destination = iota
	ToExternalIP
	ToVIP
	ToNodePort           // on the node's own address
	ToOtherNodePort      // on another address of the node
	ToLoopbackNodePort   // on 127.0.0.1, or ::1
	ToUnknownPort        // a port of the cluster IP that the service does not have
	ToUnallocatedAddress // an unused address of the service CIDR
	ToEndpointItself     // the first endpoint of the port, not through the service
	ToContestedAddress   // listed by several services
	ToListedNode         // the node's address, as an external IP
)

func (d Destination) String() string {
	return [...]string{"cluster IP", "external IP", "VIP", "node port", "node port on another address",
		"node port on localhost",
		"unknown port of the cluster IP", "unallocated address", "endpoint itself",
		"contested address", "node's address as an external IP"}[d]
}

// Resolve returns a destination's address in a family, for the port with that index in a service.
func (d Destination) Resolve(s Service, port int, f model.Family) netip.AddrPort {
	number := s.Ports[port].Number
	switch d {
	case ToExternalIP:
		return netip.AddrPortFrom(s.externalAddr(f), number)
	case ToVIP:
		return netip.AddrPortFrom(s.VIPAddr(f), number)
	case ToNodePort:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], s.NodePortOf(port))
	case ToOtherNodePort:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[1], s.NodePortOf(port))
	case ToLoopbackNodePort:
		if f == model.IPv6 {
			return netip.AddrPortFrom(netip.IPv6Loopback(), s.NodePortOf(port))
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.NodePortOf(port))
	case ToContestedAddress:
		return netip.AddrPortFrom(ContestedAddr(f), number)
	case ToListedNode:
		return netip.AddrPortFrom(network.PlanOf(f).HostAddresses()[0], number)
	case ToUnknownPort:
		return netip.AddrPortFrom(s.clusterIP(f), number+1)
	case ToUnallocatedAddress:
		return netip.AddrPortFrom(network.Nth(network.ClusterIPs(f), 200), number)
	case ToEndpointItself:
		e := s.Ports[port].Endpoints[0]
		return netip.AddrPortFrom(network.HostNamed(e.At).Addr(f), e.Target)
	}
	return netip.AddrPortFrom(s.clusterIP(f), number)
}

// Flow returns the flow from a host to a destination in a family, for the port with that index in the service.
func (s Service) Flow(from network.Host, to Destination, port int, f model.Family) network.Attempt {
	return from.FlowTo(to.Resolve(s, port, f), s.Ports[port].Protocol, fmt.Sprintf("the %v of %s", to, s.Name))
}
