package differential

import (
	"context"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	utilnode "k8s.io/kubernetes/pkg/util/node"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// upstreamNode is what kube-proxy reads from its Node object: the topology labels, the eligibility for load balancers'
// traffic, and the addresses.
type upstreamNode struct {
	topologyLabels   map[string]string
	onTopologyChange func() // every service has to be checked

	manager *proxy.NodeManager
	health  *healthcheck.ProxyHealthServer
	handler cache.ResourceEventHandler // NodeTopologyConfig's

	last    *corev1.Node // the object as it was last seen
	deleted bool         // it has gone since
	had     []string     // the podCIDRs that an object had last
	first   *corev1.Node // the first object with an address: kube-proxy waits for it, and keeps its addresses
}

func newUpstreamNode() *upstreamNode {
	n := &upstreamNode{manager: &proxy.NodeManager{}}
	n.health = healthcheck.NewProxyHealthServer("", time.Minute, n.manager)
	c := config.NewNodeTopologyConfig(context.Background(), nodeInformer{to: n}, 0)
	c.RegisterEventHandler(n)
	return n
}

// OnTopologyChange is what a proxier does.
func (n *upstreamNode) OnTopologyChange(labels map[string]string) {
	n.topologyLabels = labels
	n.onTopologyChange()
}

// take does what kube-proxy's two handlers of Node events do.
func (n *upstreamNode) take(note notification) {
	if note.new == nil {
		n.deleted = true
		n.handler.OnDelete(note.old)
		n.manager.OnNodeDelete(note.old.(*corev1.Node))
		return
	}
	before := n.last
	n.deleted, n.last = false, note.new.(*corev1.Node)
	for _, f := range model.Families() {
		if !hostIP(before, f).Equal(hostIP(n.last, f)) {
			n.onTopologyChange() // it would take a restart (S48)
		}
	}
	if !slices.Equal(podCIDRs(before), podCIDRs(n.last)) {
		n.onTopologyChange()
	}
	if list := podCIDRs(n.last); len(list) > 0 {
		n.had = list
	}
	if ips, _ := utilnode.GetNodeHostIPs(n.last); n.first == nil && len(ips) > 0 {
		n.first = n.last
	}
	if note.old == nil {
		n.handler.OnAdd(note.new, false)
	} else {
		n.handler.OnUpdate(note.old, note.new)
	}
	n.manager.OnNodeChange(n.last)
}

// hostIP returns the address of a family that a Node object has, or nil.
func hostIP(node *corev1.Node, f model.Family) net.IP {
	if node == nil {
		return nil
	}
	ips, _ := utilnode.GetNodeHostIPs(node)
	for _, ip := range ips {
		if netutils.IsIPv6(ip) == (f == model.IPv6) {
			return ip
		}
	}
	return nil
}

// nodeIP is the node IP that a proxier is created with.
func (n *upstreamNode) nodeIP(f model.Family) net.IP {
	if ip := hostIP(n.first, f); ip != nil {
		return ip
	}
	if f == model.IPv6 {
		return net.IPv6loopback
	}
	return net.IPv4(127, 0, 0, 1)
}

// podCIDRs are those of a Node object. In this mode kube-proxy waits for them, and ends when they change, which the API
// forbids.
func podCIDRs(node *corev1.Node) []string {
	if node == nil {
		return nil
	}
	return node.Spec.PodCIDRs
}

// nodeInformer catches the handler that NodeTopologyConfig registers, so that a test calls it in its own goroutine.
type nodeInformer struct {
	v1informers.NodeInformer
	cache.SharedIndexInformer
	to *upstreamNode
}

func (i nodeInformer) Informer() cache.SharedIndexInformer { return i }

func (i nodeInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler,
	_ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.to.handler = h
	return registration{}, nil
}

type registration struct {
	cache.ResourceEventHandlerRegistration
}

func (registration) HasSynced() bool { return true }
