package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// ServiceName is the unique name of a service in the cluster.
type ServiceName struct {
	// Namespace and Name are those of the Service object.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then by name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// PortName names one port of a service.
type PortName struct {
	// Service is the service that has the port.
	Service ServiceName `json:"service"`
	// Port is the port's name, not its number; "" for the only port of a service that does not name it.
	Port string `json:"port"`
	// Protocol is part of the name because ports of different protocols may have the same name (S4).
	Protocol Protocol `json:"protocol"`
}

// String returns "namespace/name:port/protocol", or "namespace/name/protocol" for a port without a name.
func (n PortName) String() string {
	if n.Port == "" {
		return n.Service.String() + "/" + n.Protocol.String()
	}
	return n.Service.String() + ":" + n.Port + "/" + n.Protocol.String()
}

// Compare orders by service, port name and protocol number.
func (n PortName) Compare(o PortName) int {
	if c := n.Service.Compare(o.Service); c != 0 {
		return c
	}
	if c := cmp.Compare(n.Port, o.Port); c != 0 {
		return c
	}
	return cmp.Compare(n.Protocol, o.Protocol)
}

// ServicePort is one port of a service.
type ServicePort struct {
	// Name is "" only if the service has no other port. Together with Protocol it is unique in the service (S4).
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	// Port is the number at the cluster IP, the external IPs and the load-balancer VIPs, 1 to 65535.
	Port uint16 `json:"port"`
	// NodePort is the number at the node's addresses, or 0: none.
	NodePort uint16 `json:"nodePort,omitempty"`
	// TooManyEndpoints: the service asks for more endpoints, over all its ports, than the limits allow (S60), so this port
	// has none. Do not serve it, and report that to the service's author. A receiver that does not know the field rejects
	// the port's traffic, as if there were no endpoints.
	TooManyEndpoints bool `json:"tooManyEndpoints,omitempty"`
	// AppProtocol is the application protocol, and TargetPort the number or name of the pods' port, as in the object;
	// "" if it has none. They are for people and for extensions: the endpoints' ports are resolved already.
	AppProtocol string `json:"appProtocol,omitempty"`
	TargetPort  string `json:"targetPort,omitempty"`
	// Routes say what to do with traffic to the port, by family. They are zero for a family in which the service has no
	// cluster IP.
	Routes PerFamily[Routes] `json:"routes,omitzero"`
}

// HealthCheck is the health check of the node for cloud load balancers (S38), which then send traffic only to nodes
// with local endpoints.
type HealthCheck struct {
	// NodePort is the TCP port to serve it on.
	NodePort uint16 `json:"nodePort"`
	// LocalEndpoints counts the distinct addresses of ready endpoints on this node over all ports. It is not the size of
	// the local sets: those may have terminating endpoints, and several endpoints with the same address.
	LocalEndpoints PerFamily[int] `json:"localEndpoints"`
}

// Service is one service as this node has to provide it. Its endpoints are separate values, see [Endpoint].
type Service struct {
	// Name identifies the service in all calls and maps. A later service with another UID may have the same name.
	Name ServiceName `json:"name"`
	// UID distinguishes the service from an earlier one with the same name; "" if it is not known.
	UID string `json:"uid,omitempty"`
	// Created is the time when the service was created, in UTC and to the second, as in the Kubernetes API; the zero
	// time if that is not known. If services compete for an address, the older one gets it.
	Created time.Time `json:"created,omitzero"`
	// Type and LoadBalancerClass are those of the object, for people and for extensions: other fields carry their
	// effect on traffic. A service that a program builds itself needs no type.
	Type ServiceType `json:"type,omitempty"`
	// Headless services have no cluster IP and no routes: clients look up their endpoints, which are in the cluster set
	// while they are ready. Such services are present only if the source of the values is configured to include them.
	Headless          bool   `json:"headless,omitempty"`
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// ExternalName is the DNS name that a service of type ExternalName stands for. Such a service has neither addresses
	// nor endpoints, and is present only if the source of the values is configured to include it.
	ExternalName string `json:"externalName,omitempty"`
	// Labels and Annotations are the object's own, for backends with extensions. Treat them as read-only.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// ClusterIPs holds at most one address of each family, the service's primary family first. Only services that are
	// headless or stand for an external name have none.
	ClusterIPs []netip.Addr `json:"clusterIPs"`
	// ExternalIPs and LoadBalancerIPs are of the families of ClusterIPs only, sorted, without duplicates.
	// LoadBalancerIPs are those that the node itself has to answer: VIPs, never the addresses of a proxy (S7).
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
	// LoadBalancerSourceRanges are the sources that may use LoadBalancerIPs, pods and the node included; external IPs
	// and node ports are open to all (S26). They are sorted, without duplicates; one may contain another. A family
	// without any range here is not restricted: see SourceRanges. If the node is an allowed source, the list may also
	// contain VIPs, which must then be allowed as sources, too.
	LoadBalancerSourceRanges []netip.Prefix `json:"loadBalancerSourceRanges,omitempty"`
	// InternalTrafficPolicy and ExternalTrafficPolicy are the effective policies (S9), for people to read: the ports'
	// Routes carry their effect.
	InternalTrafficPolicy TrafficPolicy `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy TrafficPolicy `json:"externalTrafficPolicy"`
	// SessionAffinityTimeout is how long after its last connection a client stays with its endpoint, per port and over
	// all of the port's addresses (S32). 0: no affinity. In JSON it is a string like "3h0m0s".
	SessionAffinityTimeout time.Duration `json:"sessionAffinityTimeout,omitempty"`
	// HealthCheck is nil for services that have none.
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
	// Ports is in the order of the object. Names are unique per protocol, and so are numbers.
	Ports []ServicePort `json:"ports"`
}

// PortName returns the full name of one of the service's ports.
func (s *Service) PortName(p ServicePort) PortName {
	return PortName{Service: s.Name, Port: p.Name, Protocol: p.Protocol}
}

// Port returns the port with that name and protocol, or nil.
func (s *Service) Port(name string, protocol Protocol) *ServicePort {
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Name == name && p.Protocol == protocol {
			return p
		}
	}
	return nil
}

// ClusterIP returns the cluster IP of a family, or the zero Addr.
func (s *Service) ClusterIP(f Family) netip.Addr {
	for _, a := range s.ClusterIPs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// SourceRanges returns the source ranges of a family. No range means that every source of the family is allowed (S8).
func (s *Service) SourceRanges(f Family) []netip.Prefix {
	var ranges []netip.Prefix
	for _, p := range s.LoadBalancerSourceRanges {
		if FamilyOf(p.Addr()) == f {
			ranges = append(ranges, p)
		}
	}
	return ranges
}

// Equal reports whether two services have the same content. A nil and an empty list or map are equal.
func (s *Service) Equal(o *Service) bool {
	if s == o || s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name &&
		s.UID == o.UID &&
		s.Created.Equal(o.Created) &&
		s.Type == o.Type &&
		s.LoadBalancerClass == o.LoadBalancerClass &&
		s.Headless == o.Headless &&
		s.ExternalName == o.ExternalName &&
		maps.Equal(s.Labels, o.Labels) &&
		maps.Equal(s.Annotations, o.Annotations) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.LoadBalancerSourceRanges, o.LoadBalancerSourceRanges) &&
		s.InternalTrafficPolicy == o.InternalTrafficPolicy &&
		s.ExternalTrafficPolicy == o.ExternalTrafficPolicy &&
		s.SessionAffinityTimeout == o.SessionAffinityTimeout &&
		(s.HealthCheck == o.HealthCheck || s.HealthCheck != nil && o.HealthCheck != nil &&
			*s.HealthCheck == *o.HealthCheck) &&
		slices.Equal(s.Ports, o.Ports)
}

// plainService is Service without its methods, so that encoding/json does not call them again.
type plainService Service

// MarshalJSON writes the session affinity timeout as text, everything else as the fields' tags say.
func (s Service) MarshalJSON() ([]byte, error) {
	timeout := ""
	if s.SessionAffinityTimeout != 0 {
		timeout = s.SessionAffinityTimeout.String()
	}
	return json.Marshal(struct {
		plainService
		SessionAffinityTimeout string `json:"sessionAffinityTimeout,omitempty"`
	}{plainService(s), timeout})
}

// UnmarshalJSON reads what MarshalJSON writes, and replaces the service with it. As usual in encoding/json, null
// changes nothing.
func (s *Service) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var in struct {
		plainService
		SessionAffinityTimeout string `json:"sessionAffinityTimeout"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	var timeout time.Duration
	if in.SessionAffinityTimeout != "" {
		var err error
		if timeout, err = time.ParseDuration(in.SessionAffinityTimeout); err != nil {
			return fmt.Errorf("service %v: session affinity timeout: %w", in.Name, err)
		}
	}
	*s = Service(in.plainService)
	s.SessionAffinityTimeout = timeout
	return nil
}
