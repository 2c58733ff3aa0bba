package differential

import (
	"net"
	"reflect"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	v1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	utilnode "k8s.io/kubernetes/pkg/util/node"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// upstreamNode is what kube-proxy reads from its Node object: the topology labels, the eligibility for load balancers'
// traffic, and the addresses. It ends when the Node's addresses change or the Node is deleted, and with local pods
// detected by podCIDRs also when these change. Here it starts again at once, as a kubelet would see to it, and learns
// about its node anew; Services and slices are still the same, so that the trackers go on.
type upstreamNode struct {
	watchPodCIDRs    bool
	topologyLabels   map[string]string
	onTopologyChange func() // every service has to be checked

	manager nodeManager
	ips     []net.IP // those of the Node object at the start
	ended   bool     // manager has called its exitFunc
	health  *healthcheck.ProxyHealthServer
	handler cache.ResourceEventHandler // NodeTopologyConfig's

	seen     bool         // there was an object
	before   *corev1.Node // the object before a deletion; nil while there is one
	podCIDRs []string     // those that an object had last
}

func newUpstreamNode(watchPodCIDRs bool) *upstreamNode {
	n := &upstreamNode{watchPodCIDRs: watchPodCIDRs, onTopologyChange: func() {}}
	n.start(nil)
	return n
}

// start does what kube-proxy does when it starts, with the Node object that there is, or nil.
func (n *upstreamNode) start(node *corev1.Node) {
	n.manager, n.ips, n.ended = newNodeManager(), nil, false
	// Its constructor ends the process that it is in, and waits half a minute for addresses.
	n.setField("exitFunc", func(int) { n.ended = true })
	n.setField("watchPodCIDRs", n.watchPodCIDRs)
	if node != nil {
		n.ips, _ = utilnode.GetNodeHostIPs(node)
		n.setField("node", node)
		n.setField(nodeIPsField, n.ips)
		n.setField("podCIDRs", node.Spec.PodCIDRs)
	}
	n.health = healthcheck.NewProxyHealthServer("", time.Minute, n.manager)
	n.topologyLabels = nil
	watchTopology(nodeInformer{to: n}, n)
	if node != nil {
		n.handler.OnAdd(node, true)
	}
	n.onTopologyChange()
}

// setField sets an unexported field of the manager. It panics if the field is of another type.
func (n *upstreamNode) setField(name string, value any) {
	field := reflect.ValueOf(n.manager).Elem().FieldByName(name)
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
}

// OnTopologyChange is what a proxier does.
func (n *upstreamNode) OnTopologyChange(labels map[string]string) {
	n.topologyLabels = labels
	n.onTopologyChange()
}

// take does what kube-proxy's two handlers of Node events do.
func (n *upstreamNode) take(note notification) {
	n.seen = true
	if note.new == nil {
		n.before = note.old.(*corev1.Node)
		n.handler.OnDelete(note.old)
		n.manager.OnNodeDelete(n.before)
		if n.ended {
			n.start(nil)
		}
		return
	}
	n.before = nil
	node := note.new.(*corev1.Node)
	if len(node.Spec.PodCIDRs) > 0 {
		n.podCIDRs = node.Spec.PodCIDRs
	}
	if note.old == nil {
		n.handler.OnAdd(note.new, false)
	} else {
		n.handler.OnUpdate(note.old, note.new)
	}
	n.manager.OnNodeChange(node)
	if n.ended {
		n.start(node)
	}
}

// hostIP returns the address of a family that is in a list, or nil.
func hostIP(ips []net.IP, f model.Family) net.IP {
	for _, ip := range ips {
		if netutils.IsIPv6(ip) == (f == model.IPv6) {
			return ip
		}
	}
	return nil
}

// nodeIP is the node IP that a proxier is created with.
func (n *upstreamNode) nodeIP(f model.Family) net.IP {
	if ip := hostIP(n.ips, f); ip != nil {
		return ip
	}
	if f == model.IPv6 {
		return net.IPv6loopback
	}
	return net.IPv4(127, 0, 0, 1)
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
