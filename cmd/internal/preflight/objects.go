package preflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// replay is a source of objects that never change.
type replay []watch.Change

// Run implements watch.Source.
func (r replay) Run(ctx context.Context, _ string, h watch.Handler) error {
	h.Update(r...)
	h.Synced()
	<-ctx.Done()
	return nil
}

func (r replay) nodes() (names []string) {
	for _, c := range r {
		if node, ok := c.Object.(*corev1.Node); ok && !c.Deleted {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// services returns the number of Services.
func (r replay) services() (n int) {
	for _, c := range r {
		if _, ok := c.Object.(*corev1.Service); ok && !c.Deleted {
			n++
		}
	}
	return n
}

// addresses returns the addresses of a Node object.
func (r replay) addresses(name string) (ips []netip.Addr) {
	for _, c := range r {
		if node, ok := c.Object.(*corev1.Node); ok && !c.Deleted && node.Name == name {
			ips = localstate.NodeIPs(node)
		}
	}
	return ips
}

// known returns an error if no Node has this name: statements about an unknown node would be wrong.
func known(nodes []string, name string) error {
	if slices.Contains(nodes, name) {
		return nil
	}
	some := nodes[:min(5, len(nodes))]
	return fmt.Errorf("there is no Node %q: check --node-name; there are %d Nodes, such as %q", name, len(nodes), some)
}

// forNode returns the objects without other Nodes.
func (r replay) forNode(name string) replay {
	return slices.DeleteFunc(slices.Clone(r), func(c watch.Change) bool {
		node, ok := c.Object.(*corev1.Node)
		return ok && node.Name != name
	})
}

// collect returns a source's current objects. Anything malformed in files is an error: nobody knows what is missing.
func collect(ctx context.Context, src watch.Source, node string) (replay, error) {
	malformed := &errorSink{LogSink: klog.FromContext(ctx).GetSink(), all: new([]error)}
	running, cancel := context.WithCancel(klog.NewContext(ctx, logr.New(malformed)))
	defer cancel()
	c := &collector{done: cancel}
	if err := src.Run(running, node, c); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return c.objects, errors.Join(*malformed.all...)
}

// errorSink is the log of a source. It keeps the errors.
type errorSink struct {
	logr.LogSink
	all *[]error
}

// Error implements logr.LogSink.
func (s *errorSink) Error(err error, msg string, keysAndValues ...any) {
	*s.all = append(*s.all, fmt.Errorf("%s: %w %v", msg, err, keysAndValues))
}

// WithValues implements logr.LogSink.
func (s *errorSink) WithValues(keysAndValues ...any) logr.LogSink {
	return &errorSink{s.LogSink.WithValues(keysAndValues...), s.all}
}

// WithName implements logr.LogSink.
func (s *errorSink) WithName(name string) logr.LogSink {
	return &errorSink{s.LogSink.WithName(name), s.all}
}

// collector keeps copies of the objects of a source. It implements watch.Handler.
type collector struct {
	done func()

	mu      sync.Mutex
	objects replay
}

// Update implements watch.Handler.
func (c *collector) Update(changes ...watch.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		if o, ok := change.Object.(runtime.Object); ok {
			c.objects = append(c.objects, watch.Change{Object: o.DeepCopyObject().(metav1.Object), Deleted: change.Deleted})
		}
	}
}

// Synced implements watch.Handler.
func (c *collector) Synced() { c.done() }
