package dropin

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// otherNodes are the addresses of the cluster's other nodes, and those that the program has reached, for mode ipvs: an
// ipvs.OtherNodes. It watches all Nodes, which takes traffic and memory in proportion to their number, so it begins
// only when the addresses are first requested. It keeps nothing but the addresses.
type otherNodes struct {
	self    string
	begin   func() // called for each request
	reached *reached

	mu     sync.Mutex
	known  bool
	byNode map[string][]netip.Addr
	more   []netip.Addr // reached, in list
	list   []netip.Addr
	stale  bool // list has to be rebuilt
}

var _ watch.Handler = (*otherNodes)(nil)

// newOtherNodes returns the addresses of all nodes but one. Once requested, they are followed until ctx ends, in wg.
// Without a client they are those that the brain tells, and not known until one has been reached.
func newOtherNodes(
	ctx context.Context, wg *sync.WaitGroup, client kubernetes.Interface, self string, reached *reached,
) (*otherNodes, error) {
	o := &otherNodes{self: self, reached: reached, byNode: map[string][]netip.Addr{}}
	if client == nil {
		unknown := sync.OnceFunc(func() {
			klog.FromContext(ctx).Info("Behind a brain the addresses of other nodes are not known: this node no longer " +
				"reaches one that a Service lists as an external IP or VIP. Use mode nftables if Services do")
		})
		o.begin = func() {
			told, known := reached.toldNodes()
			if told && !known {
				unknown()
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.known = told
		}
		return o, nil
	}
	nodes, err := watch.NewClientset(client, watch.ClientsetOptions{OnlyNodes: true})
	if err != nil {
		return nil, err
	}
	o.begin = sync.OnceFunc(func() {
		wg.Go(func() { _ = nodes.Run(ctx, watch.AllNodes, o) }) // its error is always nil
	})
	return o, nil
}

// Addresses implements ipvs.OtherNodes.
func (o *otherNodes) Addresses() ([]netip.Addr, bool) {
	o.begin()
	o.mu.Lock()
	defer o.mu.Unlock()
	if more := o.reached.addresses(); o.stale || !slices.Equal(more, o.more) {
		o.more = more
		o.list = slices.Concat(append(slices.Collect(maps.Values(o.byNode)), more)...)
		slices.SortFunc(o.list, netip.Addr.Compare)
		o.list, o.stale = slices.Compact(o.list), false
	}
	return o.list, o.known
}

// Changed implements ipvs.OtherNodes.
func (o *otherNodes) Changed() <-chan struct{} { return o.reached.changed }

// notify is called with the lock held.
func (o *otherNodes) notify() {
	select {
	case o.reached.changed <- struct{}{}:
	default:
	}
}

// Update implements watch.Handler. In most updates of a Node its addresses are the same.
func (o *otherNodes) Update(changes ...watch.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := false
	for _, c := range changes {
		name := c.Object.GetName()
		var addrs []netip.Addr
		if node, ok := c.Object.(*corev1.Node); ok && !c.Deleted {
			addrs = localstate.NodeIPs(node)
		}
		if name == o.self || slices.Equal(o.byNode[name], addrs) {
			continue
		}
		if o.byNode[name] = addrs; len(addrs) == 0 {
			delete(o.byNode, name)
		}
		changed = true
	}
	if o.stale = o.stale || changed; changed && o.known {
		o.notify()
	}
}

// Synced implements watch.Handler. Without permission to read Nodes it is called as if there were none, so that nothing
// waits for them.
func (o *otherNodes) Synced() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known = true
	o.notify()
}
