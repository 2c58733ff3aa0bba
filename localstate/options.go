package localstate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options are what a State needs to know of its node. The zero value is usable: both families, no node, no
// local-traffic detector. What holds for all nodes of the cluster is in [ClusterOptions].
type Options struct {
	// NodeName is the name of this node's Node object. Without it no endpoint is local and no hint names this node.
	NodeName string
	// Families are the IP families to compute. Default: both.
	Families []model.Family
	// NodeIPs override the Node object's addresses in each family that they have an address of; the primary one of each
	// family comes first. In other families the Node object's addresses are used, and followed.
	NodeIPs []netip.Addr
	// MasqueradeAll masquerades all traffic to cluster IPs (S28).
	MasqueradeAll bool
	// DrainingEndpoints hands over terminating endpoints of all protocols while they still serve their connections, in
	// no set, so that a receiver can distinguish draining endpoints from those that are gone (S57). Without it, only
	// those of UDP are handed over (S40).
	DrainingEndpoints bool
	// DetectLocal says how to detect traffic from pods of this node (S30).
	DetectLocal DetectLocal
}

// ClusterOptions are what is the same for all nodes of a cluster. The zero value is usable.
type ClusterOptions struct {
	// ServiceProxyName selects the services whose label service.kubernetes.io/service-proxy-name has this value,
	// instead of those without the label (S1).
	ServiceProxyName string
	// NoExternalIPs ignores spec.externalIPs, for clusters that do not trust the authors of Services (S6).
	NoExternalIPs bool
	// EndpointDetails fills in [model.Endpoint]'s Details, which identify an endpoint for people. It doubles the memory
	// for each endpoint. The source has to deliver the details: see EndpointDetails of watch.ClientsetOptions.
	EndpointDetails bool
	// HeadlessServices also hands over headless services with their endpoints, and ExternalNameServices those of type
	// ExternalName, for example for a DNS server (S2). A headless service without ports has no endpoints here, because
	// an endpoint belongs to a port. The source has to deliver the objects: see HeadlessServices of
	// watch.ClientsetOptions.
	HeadlessServices, ExternalNameServices bool
}

// OfSource returns the options with the ServiceProxyName of a source of objects, if it has one (a method with this
// name). A different one in o is an error.
func (o ClusterOptions) OfSource(source any) (ClusterOptions, error) {
	if s, ok := source.(interface{ ServiceProxyName() string }); ok {
		if name := s.ServiceProxyName(); o.ServiceProxyName != "" && o.ServiceProxyName != name {
			return o, fmt.Errorf("ServiceProxyName is %q, that of the source %q", o.ServiceProxyName, name)
		}
		o.ServiceProxyName = s.ServiceProxyName()
	}
	return o, nil
}

// options are all of them.
type options struct {
	Options
	ClusterOptions
}

// DetectLocal is how a node distinguishes traffic of its own pods from other traffic (S30). Set at most one field;
// without any, it cannot.
type DetectLocal struct {
	// ClusterCIDRs hold the addresses of the cluster's pods. A family without one has no detector.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR uses the podCIDRs of the Node object, and follows them. Known ones are kept until others come; see also
	// [State.AwaitsNodeCIDR].
	NodeCIDR bool
	// Bridge is the name of the interface that all pods of the node are behind.
	Bridge string
	// InterfacePrefix is the prefix of the names of the pods' host interfaces.
	InterfacePrefix string
}

func (o Options) validate() error {
	var errs []error
	for _, f := range o.Families {
		if f != model.IPv4 && f != model.IPv6 {
			errs = append(errs, fmt.Errorf("families: %v is invalid", f))
		}
	}
	for _, a := range o.NodeIPs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			errs = append(errs, fmt.Errorf("node IPs: %v is not a plain IP address", a))
		}
	}
	ways := 0
	for _, set := range []bool{len(o.DetectLocal.ClusterCIDRs) > 0, o.DetectLocal.NodeCIDR,
		o.DetectLocal.Bridge != "", o.DetectLocal.InterfacePrefix != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		errs = append(errs, errors.New("detect local: more than one way is set"))
	}
	for _, p := range o.DetectLocal.ClusterCIDRs {
		if !p.IsValid() {
			errs = append(errs, errors.New("detect local: invalid cluster CIDR"))
		}
	}
	if o.DetectLocal.NodeCIDR && o.NodeName == "" {
		errs = append(errs, errors.New("detect local: NodeCIDR needs a node name"))
	}
	return errors.Join(errs...)
}

// EnabledFamilies returns the families to compute, IPv4 first.
func (o Options) EnabledFamilies() []model.Family {
	var families []model.Family
	for _, f := range model.Families() {
		if len(o.Families) == 0 || slices.Contains(o.Families, f) {
			families = append(families, f)
		}
	}
	return families
}
