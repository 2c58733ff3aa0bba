package localstate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Options are the options of one node. The zero value is usable: both families, no node, no local-traffic detector.
// Options that are the same for all nodes of the cluster are in [ClusterOptions].
type Options struct {
	// NodeName is the name of this node's Node object. Without it no endpoint is local and no hint names this node.
	NodeName string
	// Families are the IP families to compute. Default: both.
	Families []model.Family
	// NodeIPs override the Node object's addresses, in each family in which there is one; the primary address of each
	// family comes first. In other families the Node object's addresses are used, and kept up to date.
	NodeIPs []netip.Addr
	// Zone, if given, is the zone of this node, whatever the label topology.kubernetes.io/zone of the Node object says,
	// for programs that know it without a Node. It decides which zone hints name this node (S22).
	Zone string
	// NoNodeHints and NoZoneHints ignore topology hints of that kind (S22), for programs that can switch them off. With
	// both, the cluster set has all ready endpoints, wherever they are.
	NoNodeHints, NoZoneHints bool
	// MasqueradeAll masquerades all traffic to cluster IPs (S28).
	MasqueradeAll bool
	// DrainingEndpoints hands over terminating endpoints of all protocols while they still serve their connections, in
	// no set, so that a receiver can distinguish draining endpoints from those that are gone (S57). Without it, only
	// those of UDP are handed over (S40).
	DrainingEndpoints bool
	// AllEndpoints hands over every known endpoint of a service, in no set if it gets no new traffic: those that are not
	// ready, that no longer serve, or that hints or a policy exclude. It includes DrainingEndpoints. It is for dataplanes
	// that track connections themselves, and end connections to endpoints that they no longer know. Package frontend has
	// an option of the same name.
	AllEndpoints bool
	// ExtraSets are endpoint sets to compute for every service that is not headless, even where no route uses them.
	// It is for dataplanes that need a set for something other than a traffic policy: for direct server return, say,
	// the local set of every service. Routes stay as they are. Default: only the sets that a route uses (S21).
	ExtraSets model.EndpointSets
	// DetectLocal says how to detect traffic from pods of this node (S30).
	DetectLocal DetectLocal
}

// ClusterOptions are the options that are the same for all nodes of a cluster. The zero value is usable.
type ClusterOptions struct {
	// ServiceProxyName selects the services whose label service.kubernetes.io/service-proxy-name has this value, instead
	// of those without the label (S1). [AllServiceProxies] selects all, so that AdmitService can decide.
	ServiceProxyName string
	// AdmitService, if given, is called for each Service before anything else looks at it. It may change the Service,
	// which is a copy: add a policy that an annotation asks for, or drop addresses. It returns whether the Service is
	// served here; if not, it counts as deleted. Changes of its namespace and name are ignored.
	//
	// It has to return soon, must not call back into its caller, and should depend on the Service alone: it is called
	// whenever the Service is delivered, possibly several times, and the answer holds until the next time. A full resync
	// does not call it again, since that repairs the dataplane, not the state. Calls for one State are not concurrent.
	// States made by [State.ForClass] call it themselves, so a brain calls it once more for each class. Without it no
	// Service is copied.
	AdmitService func(*corev1.Service) bool
	// AdmitSlice, if given, does the same for EndpointSlices: it may change the EndpointSlice, which is a copy whose
	// Labels are not nil, and returns whether it is used; if not, it counts as deleted. The label
	// kubernetes.io/service-name says to which Service of the namespace it belongs (S13), and may be changed: then the
	// slice leaves its previous Service. It is not called for a deletion: the slice leaves the Service to which it was
	// assigned.
	//
	// The same restrictions apply to it as to AdmitService. Without it no EndpointSlice is copied. A watch.Clientset
	// delivers all labels, and annotations with SliceAnnotations of watch.ClientsetOptions. It does not deliver slices
	// with the label service.kubernetes.io/headless unless HeadlessServices is set there.
	AdmitSlice func(*discoveryv1.EndpointSlice) bool
	// NoExternalIPs ignores spec.externalIPs, for clusters that do not trust the authors of Services (S6).
	NoExternalIPs bool
	// EndpointDetails fills in [model.Endpoint]'s Details, which identify an endpoint for people. It doubles the memory
	// for each endpoint. The source has to deliver the details: see EndpointDetails of watch.ClientsetOptions.
	EndpointDetails bool
	// NoMetadata leaves Labels and Annotations of services empty, for backends that do not read them. They take about a
	// tenth of the memory of each service. With this option a change of them alone does not count as a change.
	NoMetadata bool
	// HeadlessServices also hands over headless services with their endpoints, and ExternalNameServices those of type
	// ExternalName, for example for a DNS server (S2). A headless service without ports has no endpoints here, because
	// an endpoint belongs to a port. The source has to deliver the objects: see HeadlessServices of
	// watch.ClientsetOptions.
	HeadlessServices, ExternalNameServices bool
	// HoldEndpoints names Services whose last usable endpoints stay while their EndpointSlices have none (S66), such as
	// default/kubernetes for a program that reaches the API server through that Service, and would never learn of a new
	// endpoint. Changes of the slices that remove the last one of a port in a family do not count for it until it has a
	// usable endpoint again, or the Service no longer has the port or is no longer served. A State that has never seen a
	// usable endpoint holds none: so a process that starts meanwhile does not serve the port.
	HoldEndpoints []model.ServiceName
	// EndpointLimits bound the endpoints of a service and of a namespace.
	EndpointLimits EndpointLimits
}

func (o ClusterOptions) validate() error {
	return errors.Join(validateHeld(o.HoldEndpoints), o.EndpointLimits.Validate())
}

// AllServiceProxies is the ServiceProxyName that selects services with any value of the label, and without it. No label
// has this value. It is also that of watch.ClientsetOptions.
const AllServiceProxies = "*"

// OfSource returns the options with the ServiceProxyName of a source of objects, if it has a method of this name. A
// different name in o is an error.
func (o ClusterOptions) OfSource(source any) (ClusterOptions, error) {
	if s, ok := source.(interface{ ServiceProxyName() string }); ok {
		if name := s.ServiceProxyName(); o.ServiceProxyName != "" && o.ServiceProxyName != name {
			return o, fmt.Errorf("ServiceProxyName is %q, that of the source %q", o.ServiceProxyName, name)
		}
		o.ServiceProxyName = s.ServiceProxyName()
	}
	return o, nil
}

// options are all options of a State.
type options struct {
	Options
	ClusterOptions
}

// DetectLocal is how a node distinguishes traffic of its own pods from other traffic (S30). Set at most one field;
// without any, it cannot.
type DetectLocal struct {
	// ClusterCIDRs hold the addresses of the cluster's pods. A family without one has no detector.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR uses the podCIDRs of the Node object as they change. Known ones are kept until new ones arrive; see also
	// [State.AwaitsNodeCIDR].
	NodeCIDR bool
	// Bridge is the name of the interface to which all pods of the node are attached.
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
	if all := model.ClusterSet | model.LocalSet; o.ExtraSets&^all != 0 {
		errs = append(errs, fmt.Errorf("extra sets: %#x has sets that do not exist", uint8(o.ExtraSets)))
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
