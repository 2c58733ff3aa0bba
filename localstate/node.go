package localstate

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// taintToBeDeleted is the taint of nodes that the cluster autoscaler is about to remove (S39a).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// nodeIntake is what is known about this node and the cluster's address ranges.
type nodeIntake struct {
	model  *model.Node // as it is to be handed over
	handed *model.Node
	cidrs  map[string][]netip.Prefix // by ServiceCIDR object
}

func (n *nodeIntake) init(opts Options) {
	n.cidrs = map[string][]netip.Prefix{}
	n.model = &model.Node{Name: opts.NodeName, Zone: opts.Zone, IPs: slices.Clone(opts.NodeIPs)}
	n.model.LocalPods = opts.DetectLocal.localPods(nil)
}

// localPods returns the model's form of the detection of local traffic (S30).
func (d DetectLocal) localPods(podCIDRs []netip.Prefix) model.LocalPods {
	local := model.LocalPods{Bridge: d.Bridge, InterfacePrefix: d.InterfacePrefix}
	cidrs := d.ClusterCIDRs
	if d.NodeCIDR {
		cidrs = podCIDRs
	}
	for _, p := range cidrs {
		local.CIDRs = append(local.CIDRs, p.Masked())
	}
	local.CIDRs = sortedSet(local.CIDRs, model.ComparePrefixes)
	return local
}

// setNode records a new or changed Node; it ignores nodes other than this one. It returns whether anything relevant
// changed.
func (s *State) setNode(obj *corev1.Node) bool {
	if obj.Name != s.opts.NodeName || obj.Name == "" {
		return false
	}
	node := s.opts.node(s.log, obj, s.node.model)
	s.logUndetected(node)
	return s.nodeChanged(node)
}

// logUndetected logs, when the node's podCIDRs change, the families in which they do not allow local traffic to be
// detected.
func (s *State) logUndetected(node *model.Node) {
	cidrs := node.LocalPods.CIDRs
	if !s.opts.DetectLocal.NodeCIDR || len(cidrs) == 0 || slices.Equal(cidrs, s.node.model.LocalPods.CIDRs) {
		return
	}
	for _, f := range s.families {
		if !node.LocalPods.Detects(f) {
			s.log.Info("The Node has no podCIDR of this family: its local traffic is not detected", "node", node.Name,
				"family", f, "podCIDRs", cidrs)
		}
	}
}

// NodeTracker follows one node by its Node object, as a State does, for programs that compute the state of many nodes
// by [Class].
type NodeTracker struct {
	opts Options
	log  klog.Logger
	node *model.Node
}

// NewNodeTracker returns a tracker for the node opts.NodeName, without any Node object yet. It keeps the logger of ctx.
func NewNodeTracker(ctx context.Context, opts Options) (*NodeTracker, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	var n nodeIntake
	n.init(opts)
	return &NodeTracker{opts, klog.FromContext(ctx), n.model}, nil
}

// Set records a new or changed Node object.
func (t *NodeTracker) Set(obj *corev1.Node) { t.node = t.opts.node(t.log, obj, t.node) }

// Delete records the deletion of the Node object.
func (t *NodeTracker) Delete() { t.node = deletedNode(t.node) }

// Node returns the node. The caller passes the cluster's ServiceCIDRs, which the tracker does not know.
func (t *NodeTracker) Node(serviceCIDRs []netip.Prefix) *model.Node {
	node := *t.node
	node.ServiceCIDRs = serviceCIDRs
	return &node
}

// AwaitsNodeCIDR is like [State.AwaitsNodeCIDR].
func (t *NodeTracker) AwaitsNodeCIDR() bool { return t.opts.awaitsNodeCIDR(t.node) }

// Class returns the class of the node.
func (t *NodeTracker) Class() Class {
	c := Class{
		Zone: t.node.Zone, NoNodeHints: t.opts.NoNodeHints, NoZoneHints: t.opts.NoZoneHints,
		MasqueradeAll: t.opts.MasqueradeAll, DrainingEndpoints: t.opts.DrainingEndpoints,
		AllEndpoints: t.opts.AllEndpoints, ExtraSets: t.opts.ExtraSets,
	}
	for _, f := range model.Families() {
		if t.node.LocalPods.Detects(f) {
			c.Detects |= f.Set()
		}
	}
	return c
}

// node reads this node's Node object. Known podCIDRs stay if the object no longer has any.
func (o *Options) node(log klog.Logger, obj *corev1.Node, known *model.Node) *model.Node {
	bad := func(field string, err error) {
		log.Info("Ignoring an invalid value of the Node", "node", klog.KObj(obj), "field", field, "reason", err.Error())
	}
	node := &model.Node{
		Name:         o.NodeName,
		Zone:         cmp.Or(o.Zone, obj.Labels[corev1.LabelTopologyZone]),
		ServiceCIDRs: known.ServiceCIDRs,
		NotEligible:  obj.DeletionTimestamp != nil,
	}
	for _, taint := range obj.Spec.Taints {
		node.NotEligible = node.NotEligible || taint.Key == taintToBeDeleted
	}
	node.IPs = slices.Clone(o.NodeIPs)
	for _, ip := range nodeIPs(obj, bad) {
		given := func(a netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(ip) }
		if !slices.ContainsFunc(o.NodeIPs, given) {
			node.IPs = append(node.IPs, ip)
		}
	}
	cidrs := obj.Spec.PodCIDRs
	if len(cidrs) == 0 && obj.Spec.PodCIDR != "" {
		cidrs = []string{obj.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		prefix, err := parsePrefix(text)
		if err != nil {
			bad("spec.podCIDRs", err)
		} else if !slices.Contains(node.PodCIDRs, prefix) {
			node.PodCIDRs = append(node.PodCIDRs, prefix)
		}
	}
	node.LocalPods = o.DetectLocal.localPods(node.PodCIDRs)
	if o.DetectLocal.NodeCIDR && len(node.PodCIDRs) == 0 {
		// A recreated Node gets its podCIDRs a moment later, and its pods are still the same (S48).
		node.LocalPods = known.LocalPods
	}
	return node
}

// AwaitsNodeCIDR reports whether local traffic cannot be detected yet: detection uses the Node's podCIDRs, and none
// have been seen so far. A state handed over now would masquerade too little, and drop traffic of pods (S48).
func (s *State) AwaitsNodeCIDR() bool {
	return s.opts.awaitsNodeCIDR(s.node.model)
}

func (o *Options) awaitsNodeCIDR(node *model.Node) bool {
	return o.DetectLocal.NodeCIDR && len(node.LocalPods.CIDRs) == 0
}

// NodeIPs returns the addresses of a Node in the form of [model.Node]: the internal ones first, without duplicates and
// malformed ones.
func NodeIPs(obj *corev1.Node) []netip.Addr { return nodeIPs(obj, func(string, error) {}) }

// nodeIPs reads the addresses of a Node.
func nodeIPs(obj *corev1.Node, bad func(field string, err error)) []netip.Addr {
	var ips []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range obj.Status.Addresses {
			if a.Type != kind {
				continue
			}
			addr, err := lenient.Addr(a.Address)
			if err != nil {
				bad("status.addresses", err)
			} else if !slices.Contains(ips, addr) {
				ips = append(ips, addr)
			}
		}
	}
	return ips
}

// deleteNode records the deletion of a Node. What is known about this node stays (S24, S48), but it is no longer
// eligible for load balancers' traffic (S39a). It returns whether that changes anything.
func (s *State) deleteNode(obj *corev1.Node) bool {
	if obj.Name != s.opts.NodeName || obj.Name == "" {
		return false
	}
	return s.nodeChanged(deletedNode(s.node.model))
}

func deletedNode(known *model.Node) *model.Node {
	node := *known
	node.NotEligible = true
	return &node
}

// nodeChanged replaces the node and marks the services that depend on what changed.
func (s *State) nodeChanged(node *model.Node) bool {
	old := s.node.model
	if node.Equal(old) {
		return false
	}
	s.node.model = node
	s.pending.Node = true
	zone, addresses, detection := node.Zone != old.Zone, false, false // what differs
	for _, f := range s.families {
		s.pending.Families |= f.Set()
		addresses = addresses || node.IP(f) != old.IP(f)
		detection = detection || node.LocalPods.Detects(f) != old.LocalPods.Detects(f)
	}
	for _, svc := range s.services {
		if svc.intake != nil && (addresses && len(svc.intake.ranges) > 0 || detection) { // S26; S27, S28
			s.markService(svc)
		}
		for _, slice := range svc.slices {
			if zone && slice.hinted && !s.opts.NoZoneHints {
				s.markEndpoints(svc, slice.family) // S24
			}
		}
	}
	if zone {
		for _, svc := range s.dirty {
			// The index counts hints for the old zone, even if the slices with hints have been removed since the last Flush.
			svc.index = nil
		}
	}
	return true
}

// setServiceCIDR records a new or changed ServiceCIDR (S47). It returns whether anything relevant changed.
func (s *State) setServiceCIDR(obj *networkingv1.ServiceCIDR) bool {
	var prefixes []netip.Prefix
	for _, text := range obj.Spec.CIDRs {
		prefix, err := parsePrefix(text)
		if err != nil {
			s.log.Info("Ignoring an invalid value of a ServiceCIDR", "serviceCIDR", klog.KObj(obj),
				"field", "spec.cidrs", "reason", err.Error())
			continue
		}
		prefixes = append(prefixes, prefix)
	}
	s.node.cidrs[obj.Name] = prefixes
	return s.serviceCIDRsChanged()
}

// deleteServiceCIDR records the deletion of a ServiceCIDR. Ranges that another object also has stay (S47). It returns
// whether that changes anything.
func (s *State) deleteServiceCIDR(obj *networkingv1.ServiceCIDR) bool {
	delete(s.node.cidrs, obj.Name)
	return s.serviceCIDRsChanged()
}

func (s *State) serviceCIDRsChanged() bool {
	node := *s.node.model
	node.ServiceCIDRs = nil
	for _, prefixes := range s.node.cidrs {
		for _, p := range prefixes {
			if slices.Contains(s.families, model.FamilyOf(p.Addr())) {
				node.ServiceCIDRs = append(node.ServiceCIDRs, p)
			}
		}
	}
	node.ServiceCIDRs = sortedSet(node.ServiceCIDRs, model.ComparePrefixes)
	return s.nodeChanged(&node)
}

// flushNode hands over the node if it differs, and always the first time.
func (s *State) flushNode(r Receiver, changes *Changes) {
	if s.node.model.Equal(s.node.handed) {
		s.node.model = s.node.handed
		return
	}
	s.node.handed = s.node.model
	if r, ok := r.(NodeReceiver); ok {
		r.SetNode(s.node.model)
		changes.Node = true
		for _, f := range s.families {
			changes.Families |= f.Set()
		}
	}
}
