package dropin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// otherNodes are the addresses of the cluster's other nodes, for mode ipvs: an ipvs.OtherNodes. It watches all Nodes,
// which takes traffic and memory in proportion to their number, so it begins when it is asked for the first time.
// Of the objects it keeps the addresses alone.
type otherNodes struct {
	self      string
	reflector *cache.Reflector
	begin     func()
	changed   chan struct{}
	forbidden sync.Once

	mu     sync.Mutex
	known  bool
	plain  bool // a streamed list has not ended: do not stream
	giveUp *time.Timer
	byNode map[string][]netip.Addr
	list   []netip.Addr
	stale  bool // list is to be made again
}

var _ cache.TransformingStore = (*otherNodes)(nil)

// newOtherNodes returns the addresses of all nodes but one. They are followed until ctx ends, in wg.
func newOtherNodes(ctx context.Context, wg *sync.WaitGroup, client kubernetes.Interface, self string) *otherNodes {
	o := &otherNodes{self: self, changed: make(chan struct{}, 1), byNode: map[string][]netip.Addr{}}
	selector := fields.OneTermNotEqualSelector(metav1.ObjectNameField, self).String()
	o.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = selector
			o.begins(nil)
			list, err := client.CoreV1().Nodes().List(ctx, opts)
			o.check(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			opts.FieldSelector = selector
			streams := opts.SendInitialEvents != nil && *opts.SendInitialEvents
			if o.begins(nil); streams && o.isPlain() {
				return nil, errors.New("streamed lists do not end")
			}
			w, err := client.CoreV1().Nodes().Watch(ctx, opts)
			if o.check(ctx, err); err == nil && streams {
				o.begins(time.AfterFunc(unendedAfter, func() { o.giveUpOn(ctx, w) }))
			}
			return w, err
		},
	}, client), &corev1.Node{}, o, cache.ReflectorOptions{Name: "other nodes"})
	o.begin = sync.OnceFunc(func() { wg.Go(func() { o.reflector.RunWithContext(ctx) }) })
	return o
}

// check notes that Nodes may not be read: then none is ever known, and nobody should wait for them.
func (o *otherNodes) check(ctx context.Context, err error) {
	if !apierrors.IsForbidden(err) {
		return
	}
	o.forbidden.Do(func() {
		klog.FromContext(ctx).Error(err, "May not read Nodes: an external IP or VIP that is another node's address cuts "+
			"this node off from it")
		o.mu.Lock()
		defer o.mu.Unlock()
		o.known = true
		o.notify()
	})
}

// unendedAfter is how long a streamed list of Nodes may take.
const unendedAfter = 2 * time.Minute

// begins notes that a list or watch begins, so that there is none to give up any more but that of the timer.
func (o *otherNodes) begins(giveUp *time.Timer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopGiveUp()
	o.giveUp = giveUp
}

// stopGiveUp is called with the lock held.
func (o *otherNodes) stopGiveUp() {
	if o.giveUp != nil {
		o.giveUp.Stop()
		o.giveUp = nil
	}
}

// giveUpOn stops a streamed list that does not end, because something on the way drops the bookmark that ends it: the
// reflector then lists without streaming. watch.Clientset does the same, for the objects that are its own.
func (o *otherNodes) giveUpOn(ctx context.Context, w apiwatch.Interface) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.giveUp == nil || ctx.Err() != nil {
		return
	}
	o.plain, o.giveUp = true, nil
	klog.FromContext(ctx).Error(nil, "A streamed list does not end: does a tunnel or proxy on the way to the API server "+
		"drop the bookmark k8s.io/initial-events-end? Listing without streaming", "resource", "nodes")
	w.Stop()
}

func (o *otherNodes) isPlain() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.plain
}

// Addresses implements ipvs.OtherNodes.
func (o *otherNodes) Addresses() ([]netip.Addr, bool) {
	o.begin()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stale {
		o.list = slices.Concat(slices.Collect(maps.Values(o.byNode))...)
		slices.SortFunc(o.list, netip.Addr.Compare)
		o.list, o.stale = slices.Compact(o.list), false
	}
	return o.list, o.known
}

// Changed implements ipvs.OtherNodes.
func (o *otherNodes) Changed() <-chan struct{} { return o.changed }

// notify is called with the lock held.
func (o *otherNodes) notify() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// set notes the addresses of a node, with the lock held: of most updates of a Node they are the same.
func (o *otherNodes) set(name string, addrs []netip.Addr) {
	if name == o.self || slices.Equal(o.byNode[name], addrs) {
		return
	}
	if o.byNode[name] = addrs; len(addrs) == 0 {
		delete(o.byNode, name)
	}
	if o.stale = true; o.known {
		o.notify()
	}
}

// Add is called by the reflector, as the following methods are.
func (o *otherNodes) Add(obj any) error { return o.take(obj, localstate.NodeIPs) }

// Update is called for a Node that has changed.
func (o *otherNodes) Update(obj any) error { return o.take(obj, localstate.NodeIPs) }

// Delete is called for a Node that has gone.
func (o *otherNodes) Delete(obj any) error {
	return o.take(obj, func(*corev1.Node) []netip.Addr { return nil })
}

// take notes the addresses of one Node.
func (o *otherNodes) take(obj any, addrs func(*corev1.Node) []netip.Addr) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("got a %T instead of a Node", obj)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(node.Name, addrs(node))
	return nil
}

// Replace is called with all Nodes, at first and when a watch could not be resumed.
func (o *otherNodes) Replace(list []any, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := maps.Clone(o.byNode)
	for _, obj := range list {
		if node, ok := obj.(*corev1.Node); ok {
			delete(gone, node.Name)
			o.set(node.Name, localstate.NodeIPs(node))
		}
	}
	for name := range gone {
		o.set(name, nil)
	}
	o.stopGiveUp()
	if !o.known {
		o.known = true
		o.notify()
	}
	return nil
}

// Resync does nothing: there is nobody to tell again.
func (o *otherNodes) Resync() error { return nil }

// Transformer returns what is kept of a Node while a list comes in.
func (o *otherNodes) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return obj, nil
		}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion},
			Status: corev1.NodeStatus{Addresses: node.Status.Addresses}}, nil
	}
}
