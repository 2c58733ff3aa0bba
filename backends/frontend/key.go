package frontend

import (
	"cmp"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Key is what a packet is matched by: a destination address, protocol and port; or a node port, which has no address.
type Key struct {
	// Addr is the zero Addr for a node port. Which addresses of the node serve node ports is the backend's to know
	// (S35).
	Addr     netip.Addr
	Port     uint16         // 1 to 65535
	Protocol model.Protocol // never 0
}

// IsNodePort reports whether the key is a node port.
func (k Key) IsNodePort() bool { return !k.Addr.IsValid() }

// Compare orders by address, node ports first, then by port number and protocol.
func (k Key) Compare(o Key) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Port, o.Port); c != 0 {
		return c
	}
	return cmp.Compare(k.Protocol, o.Protocol)
}

// String returns for example "10.96.0.10:53/UDP", or "node port 30053/UDP".
func (k Key) String() string {
	if k.IsNodePort() {
		return fmt.Sprintf("node port %d/%v", k.Port, k.Protocol)
	}
	return fmt.Sprintf("%v/%v", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// Kind is what a frontend is in its service.
type Kind uint8

const (
	ClusterIP      Kind = iota // reached by the routes of cluster IPs, whatever the source; never restricted
	LoadBalancerIP             // a VIP that this node answers itself (S7); the only kind that may be restricted (S26)
	ExternalIP                 // one of the service's external IPs
	NodePort                   // a port of the node's addresses, without an address of its own
)

// String returns the kind as messages name it.
func (k Kind) String() string {
	switch k {
	case ClusterIP:
		return "cluster IP"
	case LoadBalancerIP:
		return "load-balancer IP"
	case ExternalIP:
		return "external IP"
	case NodePort:
		return "node port"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Frontend is one way to reach a service port.
type Frontend struct {
	// Key is owned by one service port at most, in each family.
	Key
	// Kind decides, with the source, which of the port's routes applies: see [Port.RoutesOf].
	Kind Kind
	// Restricted: only sources in [Port.SourceRanges] may use it (S26).
	Restricted bool
}
