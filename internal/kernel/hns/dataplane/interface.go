package dataplane

import (
	"context"
	"errors"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is the HNS of a machine, or something that behaves like it. Calls may come from several goroutines. Errors
// that a caller can handle wrap one of the errors below; any other error, for example of a restarting service, says
// nothing about what exists.
type Interface interface {
	// Features returns what this version of HNS can do.
	Features(ctx context.Context) (Features, error)
	// Network returns the network of a name, or ErrNotFound.
	Network(ctx context.Context, name string) (Network, error)

	// Endpoints returns all endpoints of a network, also those of others.
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
	// EndpointByName returns an endpoint of any network, or ErrNotFound.
	EndpointByName(ctx context.Context, name string) (Endpoint, error)
	// CreateEndpoint creates an endpoint in a network and returns it as HNS has it, which may change fields.
	// ErrNetworkNotFound: there is no such network. ErrInvalidAddress: another endpoint may have the address.
	CreateEndpoint(ctx context.Context, network string, e Endpoint) (Endpoint, error)
	// DeleteEndpoint deletes an endpoint, or returns ErrNotFound.
	DeleteEndpoint(ctx context.Context, id string) error

	// LoadBalancers returns all load balancers, also those of others.
	LoadBalancers(ctx context.Context) ([]LoadBalancer, error)
	// CreateLoadBalancer creates a load balancer and returns it as HNS has it, which may change fields.
	// ErrAlreadyExists: another one has its address and port, or the host uses the port. ErrNotFound: there is no such
	// endpoint.
	CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error)
	// UpdateLoadBalancer replaces the endpoints of a load balancer; its connections stay. ErrNotSupported: this version
	// cannot, whatever Features says. ErrNotFound: there is no such load balancer or endpoint.
	UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) error
	// DeleteLoadBalancer deletes a load balancer, or returns ErrNotFound.
	DeleteLoadBalancer(ctx context.Context, id string) error
}

var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: there is such an object, or the port is in use.
	ErrAlreadyExists = errors.New("already exists")
	// ErrNetworkNotFound comes together with ErrNotFound: what was not found is a network.
	ErrNetworkNotFound = errors.New("network not found")
	// ErrInvalidAddress: HNS does not accept an address.
	ErrInvalidAddress = errors.New("invalid address")
	// ErrNotSupported: this version of HNS cannot do it.
	ErrNotSupported = errors.New("not supported by this version of Windows")
	// ErrNotRunning: HNS does not run, for example because it is being restarted. All other calls would fail, too.
	ErrNotRunning = errors.New("HNS is not running")
)

// Features are the features in which versions of HNS differ, each with the first version that has it.
type Features struct {
	V2                 bool // the interface of version 2, which all of this needs (9.3)
	RemoteSubnet       bool // overlay networks (9.2)
	DSR                bool // direct server return: the source is kept, answers do not come back through HNS (9.3)
	SessionAffinity    bool // load balancers that choose by the source address (11.2)
	IPv6DualStack      bool // load balancers for IPv6 (11.10)
	ModifyLoadBalancer bool // load balancers can be changed in place (15.5)
}

// Network is an HNS network.
type Network struct {
	// ID is a GUID in lower case, like all IDs here.
	ID, Name string
	Type     string // for example "Overlay" or "L2Bridge", in any case
	// RemoteSubnets are the pod networks of other nodes, of an overlay network.
	RemoteSubnets []RemoteSubnet
	// Malformed says what is wrong with the remote subnets that RemoteSubnets leaves out.
	Malformed []string
}

// RemoteSubnet is the pod network of another node.
type RemoteSubnet struct {
	Prefix   netip.Prefix // the addresses of its pods
	Provider netip.Addr   // the address of that node
}

// Endpoint is an HNS endpoint: a port of the virtual switch, or the record of an address elsewhere.
type Endpoint struct {
	// ID is given by HNS: CreateEndpoint ignores it. Name is whatever the creator has chosen.
	ID, Name string
	IPs      []netip.Addr // one, or one of each family
	MAC      string       // as 02-11-0a-f4-01-05
	// Remote: the address is not on this machine.
	Remote bool
	// Provider is the address of the node that the endpoint is on, in overlay networks; the zero Addr elsewhere.
	Provider netip.Addr
}

// LoadBalancer is an HNS load balancer with one frontend.
type LoadBalancer struct {
	// ID is given by HNS: CreateLoadBalancer ignores it, UpdateLoadBalancer needs it.
	ID string
	// Key is the frontend. It cannot be changed.
	Key Key
	// TargetPort is the port of all endpoints: HNS has one for the whole load balancer.
	TargetPort uint16
	// Endpoints are IDs, at least one. HNS may return them in another order.
	Endpoints []string
	// SourceVIP is the source that endpoints see, in overlay networks; the zero Addr elsewhere.
	SourceVIP    netip.Addr
	Distribution Distribution
	Flags        Flags
	PortFlags    PortFlags
	// Foreign: it has more addresses or ports than Key says. The backend creates no such load balancers.
	Foreign bool
}

// Key identifies a load balancer by its frontend. HNS has at most one for each.
type Key struct {
	// Family is that of Addr. A node port is one key in each family.
	Family model.Family
	// Addr is the zero Addr for a node port: all addresses of the host.
	Addr     netip.Addr
	Port     uint16
	Protocol model.Protocol
}

// Distribution is how a load balancer chooses an endpoint, with HNS' numbers.
type Distribution uint32

const (
	// ByConnection chooses an endpoint for each connection.
	ByConnection Distribution = 0
	// BySource chooses an endpoint by the source address alone.
	BySource Distribution = 2
)

// Flags of a load balancer, with HNS' numbers.
type Flags uint32

const (
	// DSR keeps the source; answers go straight to the client.
	DSR Flags = 1
	// IPv6 is for addresses of that family.
	IPv6 Flags = 2
)

// PortFlags of a load balancer, with HNS' numbers.
type PortFlags uint32

const (
	// LocalRoutedVIP serves the host's own addresses, and the host itself.
	LocalRoutedVIP PortFlags = 2
	// UseMux leaves the choice of the node to an external multiplexer.
	UseMux PortFlags = 4
	// PreserveDIP delivers packets with the frontend's address as destination.
	PreserveDIP PortFlags = 8
	// VIPExternalIP is for addresses from outside the cluster.
	VIPExternalIP PortFlags = 16
)
