package frontend

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// counted is a set of things each of which several service ports may ask for. It knows which ones came and went since
// they were last accepted.
type counted[T comparable] struct {
	compare func(a, b T) int
	count   map[T]int
	touched map[T]bool // whether they had been accepted
}

func newCounted[T comparable](compare func(a, b T) int) counted[T] {
	return counted[T]{compare: compare, count: map[T]int{}, touched: map[T]bool{}}
}

func (c *counted[T]) touch(x T) {
	if _, ok := c.touched[x]; !ok {
		c.touched[x] = c.count[x] > 0
	}
}

func (c *counted[T]) add(x T) {
	c.touch(x)
	c.count[x]++
}

func (c *counted[T]) remove(x T) {
	c.touch(x)
	if c.count[x]--; c.count[x] <= 0 {
		delete(c.count, x)
	}
}

func (c *counted[T]) accept() {
	if len(c.touched) > 64 {
		c.touched = map[T]bool{} // clearing costs as much as the map ever held
	} else {
		clear(c.touched)
	}
}

// changes returns what came and went or, if full is set, everything as added; sorted.
func (c *counted[T]) changes(full bool) (d Diff[T]) {
	if full {
		return Diff[T]{Added: c.all()}
	}
	for x, was := range c.touched {
		switch is := c.count[x] > 0; {
		case is && !was:
			d.Added = append(d.Added, x)
		case was && !is:
			d.Removed = append(d.Removed, x)
		}
	}
	slices.SortFunc(d.Added, c.compare)
	slices.SortFunc(d.Removed, c.compare)
	return d
}

// all returns everything, sorted.
func (c *counted[T]) all() []T {
	list := make([]T, 0, len(c.count))
	for x := range c.count {
		list = append(list, x)
	}
	slices.SortFunc(list, c.compare)
	return list
}

// Diff is what came and went, sorted.
type Diff[T any] struct{ Added, Removed []T }

// IsEmpty tells that nothing did.
func (d Diff[T]) IsEmpty() bool { return len(d.Added)+len(d.Removed) == 0 }

// HealthCheck is a port on which a service answers health checks of load balancers (S38). It is the same in both
// families: the node answers on its addresses of both.
type HealthCheck struct {
	NodePort uint16
	Service  model.ServiceName
}

func (h HealthCheck) compare(o HealthCheck) int {
	return cmp.Or(cmp.Compare(h.NodePort, o.NodePort), h.Service.Compare(o.Service))
}

func newAddrs() counted[netip.Addr] { return newCounted(netip.Addr.Compare) }
