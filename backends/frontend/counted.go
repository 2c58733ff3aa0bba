package frontend

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// counted is a set of things each of which several service ports may ask for. It knows which ones came and went since
// they were last accepted.
type counted[T comparable] struct {
	compare func(a, b T) int
	tallies map[T]tally
	touched []T // whose tally is touched
}

// tally is how many ask for a thing, 0 if it went after it was last accepted.
type tally struct {
	n        int
	touched  bool
	accepted bool // it was there when it was last accepted, if touched
}

func newCounted[T comparable](compare func(a, b T) int) counted[T] {
	return counted[T]{compare: compare, tallies: map[T]tally{}}
}

func (c *counted[T]) add(x T) { c.count(x, 1) }

func (c *counted[T]) remove(x T) { c.count(x, -1) }

func (c *counted[T]) count(x T, by int) {
	t := c.tallies[x]
	if !t.touched {
		t.touched, t.accepted = true, t.n > 0
		c.touched = append(c.touched, x)
	}
	t.n += by
	c.tallies[x] = t
}

func (c *counted[T]) accept() {
	for _, x := range c.touched {
		if t := c.tallies[x]; t.n > 0 {
			t.touched = false
			c.tallies[x] = t
		} else {
			delete(c.tallies, x)
		}
	}
	if c.touched = c.touched[:0]; cap(c.touched) > 1024 {
		c.touched = nil
	}
}

// changes returns what came and went or, if full is set, everything as added; sorted.
func (c *counted[T]) changes(full bool) (d Diff[T]) {
	if full {
		return Diff[T]{Added: c.all()}
	}
	for _, x := range c.touched {
		switch t := c.tallies[x]; {
		case t.n > 0 && !t.accepted:
			d.Added = append(d.Added, x)
		case t.n == 0 && t.accepted:
			d.Removed = append(d.Removed, x)
		}
	}
	slices.SortFunc(d.Added, c.compare)
	slices.SortFunc(d.Removed, c.compare)
	return d
}

// all returns everything, sorted.
func (c *counted[T]) all() []T {
	list := make([]T, 0, len(c.tallies))
	for x, t := range c.tallies {
		if t.n > 0 {
			list = append(list, x)
		}
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
