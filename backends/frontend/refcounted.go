package frontend

import (
	"cmp"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// refCounted is a set of values each of which several service ports may ask for. It knows which ones were added and
// removed since they were last accepted.
type refCounted[T comparable] struct {
	compare func(a, b T) int
	n       RefCounts[T]   // how many ports ask for each value
	touched noted[T, bool] // those that may have changed since the last accept: whether they were there then
}

func newRefCounted[T comparable](compare func(a, b T) int) refCounted[T] {
	return refCounted[T]{compare: compare}
}

func (c *refCounted[T]) add(x T) {
	c.touched.note(x, c.n[x] > 0)
	c.n.Add(x)
}

func (c *refCounted[T]) remove(x T) {
	c.touched.note(x, c.n[x] > 0)
	c.n.Remove(x)
}

func (c *refCounted[T]) accept() { c.touched = nil }

// changes returns the values added and removed or, if full is set, all of them as added; sorted.
func (c *refCounted[T]) changes(full bool) (d Diff[T]) {
	if full {
		d.Added = slices.AppendSeq(make([]T, 0, len(c.n)), maps.Keys(c.n))
		slices.SortFunc(d.Added, c.compare)
		return d
	}
	for x, before := range c.touched {
		switch now := c.n[x] > 0; {
		case now && !before:
			d.Added = append(d.Added, x)
		case before && !now:
			d.Removed = append(d.Removed, x)
		}
	}
	slices.SortFunc(d.Added, c.compare)
	slices.SortFunc(d.Removed, c.compare)
	return d
}

// noted holds the last accepted value of each key that may have changed since.
type noted[K comparable, V any] map[K]V

// note records a value before it changes, unless an earlier one is recorded already.
func (n *noted[K, V]) note(k K, before V) {
	if *n == nil {
		*n = noted[K, V]{}
	}
	if _, known := (*n)[k]; !known {
		(*n)[k] = before
	}
}

// Diff has the values added and removed.
type Diff[T any] struct {
	// Added and Removed have no element in common and are sorted. They belong to the caller.
	Added, Removed []T
}

// HealthCheck is a port on which a service answers health checks of load balancers (S38). It is the same in both
// families: the node answers on its addresses of both.
type HealthCheck struct {
	// NodePort is the TCP port: the service's healthCheckNodePort.
	NodePort uint16
	// Service is the service whose local endpoints the answers count.
	Service model.ServiceName
}

func (h HealthCheck) compare(o HealthCheck) int {
	return cmp.Or(cmp.Compare(h.NodePort, o.NodePort), h.Service.Compare(o.Service))
}
