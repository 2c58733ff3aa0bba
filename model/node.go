package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// LocalPods says how a backend recognises traffic from pods of this node (S30). At most one field is set. Without any,
// such traffic cannot be recognised, and no route depends on it.
type LocalPods struct {
	// CIDRs hold the addresses of this node's pods, or of all pods of the cluster. A family without a CIDR has no
	// detector.
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
	// Bridge is the name of the network interface to which all pods of the node are attached.
	Bridge string `json:"bridge,omitempty"`
	// InterfacePrefix is the prefix of the names of the pods' network interfaces on the host.
	InterfacePrefix string `json:"interfacePrefix,omitempty"`
}

// Detects reports whether traffic from local pods can be recognised in a family.
func (l LocalPods) Detects(f Family) bool {
	return l.Bridge != "" || l.InterfacePrefix != "" ||
		slices.ContainsFunc(l.CIDRs, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// Of returns the detector of one family, without the CIDRs of the other one.
func (l LocalPods) Of(f Family) LocalPods {
	l.CIDRs = PrefixesOf(f, l.CIDRs)
	return l
}

// Equal reports whether two detectors are the same. A nil and an empty list are equal.
func (l LocalPods) Equal(o LocalPods) bool {
	return l.Bridge == o.Bridge && l.InterfacePrefix == o.InterfacePrefix && slices.Equal(l.CIDRs, o.CIDRs)
}

// Node has what a backend may need to know about the node that it runs on, and about the cluster's address ranges.
type Node struct {
	// Name is the name of the Node object.
	Name string `json:"name"`
	// Zone is the node's topology zone, "" if it has none or is not known yet.
	Zone string `json:"zone,omitempty"`
	// IPs are the node's addresses as Kubernetes knows them, the primary one of each family first. The host may have
	// more: see S35 for those that serve node ports.
	IPs []netip.Addr `json:"ips,omitempty"`
	// PodCIDRs are the address ranges of the node's pods, if Kubernetes allocates them.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// ServiceCIDRs are the cluster's address ranges for cluster IPs, sorted; empty if they are not known (S33, S47).
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// LocalPods says how to recognise that a source is a pod of this node.
	LocalPods LocalPods `json:"localPods,omitzero"`
	// NotEligible: load balancers should send no new traffic here, because the node is gone, is being deleted or is
	// about to be removed by the cluster autoscaler (S39a). Traffic that arrives anyway is served as before.
	NotEligible bool `json:"notEligible,omitempty"`
}

// IP returns the node's primary address of a family, or the zero Addr.
func (n *Node) IP(f Family) netip.Addr {
	for _, a := range n.IPs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// Equal reports whether two nodes have the same content. A nil and an empty list are equal.
func (n *Node) Equal(o *Node) bool {
	if n == o || n == nil || o == nil {
		return n == o
	}
	return n.Name == o.Name && n.Zone == o.Zone && n.NotEligible == o.NotEligible && n.LocalPods.Equal(o.LocalPods) &&
		slices.Equal(n.IPs, o.IPs) && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs)
}

// String returns a readable form on one line.
func (n *Node) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s", n.Name)
	line{&b}.text("zone", n.Zone).text("ips", join(n.IPs)).text("pods", join(n.PodCIDRs)).
		text("services", join(n.ServiceCIDRs)).
		text("local-pods", join(n.LocalPods.CIDRs)).text("bridge", n.LocalPods.Bridge).
		text("interfaces", n.LocalPods.InterfacePrefix).
		flag("not-eligible", n.NotEligible)
	return b.String()
}
