package brain

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// nodeVIPs finds the addresses that are both a Node's and a Service's external IP or VIP (S63). In most clusters there
// are none. A change costs what it changes. The Server's work guards it.
type nodeVIPs struct {
	nodes    map[netip.Addr]int                 // how many Nodes have an address
	listed   map[netip.Addr]int                 // how many Services list an address
	services map[model.ServiceName][]netip.Addr // what Services list
	both     map[netip.Addr]struct{}
	changed  bool // both, since the last message
}

func newNodeVIPs() nodeVIPs {
	return nodeVIPs{nodes: map[netip.Addr]int{}, listed: map[netip.Addr]int{},
		services: map[model.ServiceName][]netip.Addr{}, both: map[netip.Addr]struct{}{}}
}

// setNode takes a Node; nil: there was, or is, none.
func (v *nodeVIPs) setNode(before, now *corev1.Node) {
	var old, list []netip.Addr
	if before != nil {
		old = localstate.NodeIPs(before)
	}
	if now != nil {
		list = localstate.NodeIPs(now)
	}
	v.replace(v.nodes, old, list)
}

// setService takes a Service.
func (v *nodeVIPs) setService(s *corev1.Service, deleted bool) {
	name := model.ServiceName{Namespace: s.Namespace, Name: s.Name}
	var list []netip.Addr
	if !deleted {
		list = localstate.ExternalIPs(s)
	}
	v.replace(v.listed, v.services[name], list)
	if len(list) > 0 {
		v.services[name] = list
	} else {
		delete(v.services, name)
	}
}

func (v *nodeVIPs) replace(counts map[netip.Addr]int, before, now []netip.Addr) {
	if slices.Equal(before, now) {
		return
	}
	for _, a := range now {
		counts[a]++
		v.note(a)
	}
	for _, a := range before {
		if counts[a]--; counts[a] == 0 {
			delete(counts, a)
		}
		v.note(a)
	}
}

// note updates both after a count has changed.
func (v *nodeVIPs) note(a netip.Addr) {
	_, was := v.both[a]
	switch is := v.nodes[a] > 0 && v.listed[a] > 0; {
	case is == was:
		return
	case is:
		v.both[a] = struct{}{}
	default:
		delete(v.both, a)
	}
	v.changed = true
}

// message returns what clients are sent, or before if nothing has changed since it was made, or if it is nil.
func (v *nodeVIPs) message(before *remotev1.NodeVIPs) *remotev1.NodeVIPs {
	if !v.changed || before == nil {
		return before
	}
	v.changed = false
	return wire.EncodeNodeVIPs(slices.SortedFunc(maps.Keys(v.both), netip.Addr.Compare))
}
