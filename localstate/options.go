package localstate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options configures a State. The zero value is usable: both families, no node, no local-traffic detector.
type Options struct {
	// NodeName is the name of this node's Node object. Without it no endpoint is local and no hint names this node.
	NodeName string
	// Families are the IP families to work out. Default: both.
	Families []model.Family
	// ServiceProxyName takes the services whose label service.kubernetes.io/service-proxy-name has this value, instead
	// of those that do not have the label (S1).
	ServiceProxyName string
	// NodeIPs are the node's addresses of the families that they have one of, the primary one of each first. Of the
	// other families those of the Node object count, and are followed.
	NodeIPs []netip.Addr
	// NoExternalIPs programs no spec.externalIPs, for clusters that do not trust who may write them (S6).
	NoExternalIPs bool
	// DropAnnotations are keys of annotations that are not passed on, so that changes of them do not count: for
	// example, those that operators change all the time. A key that ends in "/" stands for all keys that begin with it.
	// The annotation in which kubectl keeps the whole object is never passed on.
	DropAnnotations []string
	// MasqueradeAll masquerades all traffic to cluster IPs (S28).
	MasqueradeAll bool
	// EndpointDetails fills in [model.Endpoint]'s Details, which identify an endpoint for people. It takes about as
	// much memory again for each endpoint. The slices have to come with it: see EndpointDetails of
	// watch.ClientsetOptions.
	EndpointDetails bool
	// DrainingEndpoints hands over endpoints of all protocols while they serve the connections that they have and
	// terminate, in no set, so that a receiver can tell one that drains from one that is gone (S57). Without it only
	// UDP endpoints are (S40).
	DrainingEndpoints bool
	// HeadlessServices takes headless services, too, with their endpoints, and ExternalNameServices those of type
	// ExternalName, for a receiver that is a DNS server, say (S2). A headless service without ports has no endpoints
	// here, because an endpoint is one of a port. The objects have to come: see HeadlessServices of
	// watch.ClientsetOptions.
	HeadlessServices, ExternalNameServices bool
	// DetectLocal says how to tell that traffic comes from a pod of this node (S30).
	DetectLocal DetectLocal
}

// DetectLocal is how a node tells its own pods' traffic from other traffic (S30). Set one field at most; with none, it
// cannot.
type DetectLocal struct {
	// ClusterCIDRs hold the addresses of the cluster's pods. A family without one has no detector.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR takes the podCIDRs of the Node object, and follows them. Those that are known are kept until others
	// come, see also [State.AwaitsNodeCIDR].
	NodeCIDR bool
	// Bridge is the name of the interface that all pods of the node are behind.
	Bridge string
	// InterfacePrefix is what the names of the pods' host interfaces start with.
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
			errs = append(errs, fmt.Errorf("node IPs: %v is no plain IP address", a))
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

// EnabledFamilies returns the families to work out, IPv4 first.
func (o Options) EnabledFamilies() []model.Family {
	var families []model.Family
	for _, f := range model.Families() {
		if len(o.Families) == 0 || slices.Contains(o.Families, f) {
			families = append(families, f)
		}
	}
	return families
}
