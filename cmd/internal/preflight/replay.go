package preflight

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
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

// all returns the Nodes.
func (r replay) all() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for _, c := range r {
			if node, ok := c.Object.(*corev1.Node); ok && !c.Deleted && !yield(node) {
				return
			}
		}
	}
}

// onWindows reports whether a node runs Windows.
func (r replay) onWindows() bool {
	for node := range r.all() {
		if node.Labels[corev1.LabelOSStable] == string(corev1.Windows) {
			return true
		}
	}
	return false
}

func (r replay) nodes() (names []string) {
	for node := range r.all() {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// number returns the number of objects of a kind.
func number[T metav1.Object](r replay) (n int) {
	for _, c := range r {
		if _, ok := c.Object.(T); ok && !c.Deleted {
			n++
		}
	}
	return n
}

// others is what is known of other nodes than one.
type others struct {
	ips     map[netip.Addr]struct{}
	podCIDR model.PerFamily[netip.Prefix] // of one of them
}

// addresses returns the addresses of a Node object, and what the other ones say.
func (r replay) addresses(name string) (ips []netip.Addr, o others) {
	o.ips = map[netip.Addr]struct{}{}
	for node := range r.all() {
		if node.Name == name {
			ips = localstate.NodeIPs(node)
			continue
		}
		for _, a := range localstate.NodeIPs(node) {
			o.ips[a] = struct{}{}
		}
		for _, text := range append(slices.Clip(node.Spec.PodCIDRs), node.Spec.PodCIDR) {
			if cidr, err := lenient.Prefix(text); err == nil {
				if known := o.podCIDR.At(model.FamilyOf(cidr.Addr())); !known.IsValid() {
					*known = cidr
				}
			}
		}
	}
	return ips, o
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

// collect returns a source's current objects. If the source logs an error, such as a malformed document, or skips what
// was meant, collect returns that as well, because objects may be missing.
func collect(ctx context.Context, src watch.Source, node string) (replay, error) {
	var logged logged
	running, cancel := context.WithCancel(klog.NewContext(ctx,
		logr.New(&errorSink{LogSink: klog.FromContext(ctx).GetSink(), logged: &logged})))
	defer cancel()
	c := &collector{done: cancel}
	if err := src.Run(running, node, c); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), logged.err())
	}
	return c.objects, logged.err()
}

// logged are the errors of a log, each once. A source's goroutines may log at the same time.
type logged struct {
	mu  sync.Mutex
	all []error
}

func (l *logged) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.all, func(other error) bool { return other.Error() == err.Error() }) {
		l.all = append(l.all, err)
	}
}

func (l *logged) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.all...)
}

// errorSink is the log of a source. It keeps what makes its objects incomplete.
type errorSink struct {
	logr.LogSink
	logged *logged
}

// Info implements logr.LogSink. What is skipped at level 0 was probably meant to be used, such as an EndpointSlice of
// another version: objects are missing.
func (s *errorSink) Info(level int, msg string, keysAndValues ...any) {
	if level == 0 && msg == "Skipped a document of a kind that is not used" {
		s.logged.add(fmt.Errorf("%s %v", msg, keysAndValues))
		return
	}
	s.LogSink.Info(level, msg, keysAndValues...)
}

// Error implements logr.LogSink.
func (s *errorSink) Error(err error, msg string, keysAndValues ...any) {
	s.logged.add(fmt.Errorf("%s: %w %v", msg, err, keysAndValues))
}

// WithValues implements logr.LogSink.
func (s *errorSink) WithValues(keysAndValues ...any) logr.LogSink {
	return &errorSink{s.LogSink.WithValues(keysAndValues...), s.logged}
}

// WithName implements logr.LogSink.
func (s *errorSink) WithName(name string) logr.LogSink {
	return &errorSink{s.LogSink.WithName(name), s.logged}
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
