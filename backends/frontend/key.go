package frontend

import (
	"cmp"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Key is what packets are matched by: a destination address, protocol and port; or a node port, which has no address.
type Key struct {
	// Addr is the zero Addr for a node port. The backend has to find out which addresses of the node serve node ports
	// (S35).
	Addr     netip.Addr
	Port     uint16         // 1 to 65535
	Protocol model.Protocol // never 0
}

// IsNodePort reports whether the key is a node port.
func (k Key) IsNodePort() bool { return !k.Addr.IsValid() }

// Compare orders by address, node ports first, then by port number and protocol.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// String returns for example "10.96.0.10:53/UDP", or "node port 30053/UDP".
func (k Key) String() string {
	if k.IsNodePort() {
		return fmt.Sprintf("node port %d/%v", k.Port, k.Protocol)
	}
	return fmt.Sprintf("%v/%v", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// Kind says what kind of address of its service a frontend is.
type Kind uint8

const (
	ClusterIP      Kind = iota // has the cluster-IP route, whatever the source; never restricted
	LoadBalancerIP             // a VIP that this node answers itself (S7); the only kind that may be restricted (S26)
	ExternalIP                 // one of the service's external IPs
	NodePort                   // a port of the node's addresses
)

// String returns the kind as it appears in messages.
func (k Kind) String() string {
	names := [...]string{ClusterIP: "cluster IP", LoadBalancerIP: "load-balancer IP", ExternalIP: "external IP",
		NodePort: "node port"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Frontend is one way to reach a service port.
type Frontend struct {
	// Key has at most one owner in each family.
	Key
	// Kind decides, with the source, which of the port's routes applies: see [Port.RoutesOf].
	Kind Kind
	// Restricted: only sources in [Port.SourceRanges] may use it (S26).
	Restricted bool
}
