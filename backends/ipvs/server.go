package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// server is a virtual server: the wanted one, and the one that the kernel was last known to have.
type server struct {
	key      dp.ServerKey
	protocol model.Protocol // also of one by mark

	want   dp.Server
	wanted bool

	actual dp.Server
	exists bool

	destinations map[netip.AddrPort]*destination
	changed      map[netip.AddrPort]bool // destinations that may have to be changed
	// draining are removed destinations, with the time since which they have had weight 0.
	draining map[netip.AddrPort]time.Time

	err     error                    // why the kernel refused the virtual server as it is wanted
	refused map[netip.AddrPort]error // destinations that the kernel refused
}

// destination is a real server.
type destination struct {
	role   role
	weight int // absent if the kernel does not have it
}

const absent = -1

// role says which connections a real server serves.
type role uint8

const (
	gone    role = iota // existing TCP connections, for up to drainTimeout
	serving             // existing connections
	active              // new connections as well
)

// assign gives an endpoint a role.
func (s *server) assign(target netip.AddrPort, r role) {
	d := s.destinations[target]
	if d == nil {
		if r != active {
			return // the kernel does not have it
		}
		d = &destination{weight: absent}
		s.destinations[target] = d
	} else if d.role == r {
		return
	}
	d.role = r
	s.changed[target] = true
}

// adopt takes over the kernel's virtual server with its real servers.
func (s *server) adopt(actual dp.Server, list []dp.Destination) {
	s.actual, s.exists = actual, true
	for _, d := range s.destinations {
		d.weight = absent
	}
	for _, d := range list {
		old := s.destinations[d.Target]
		if old == nil {
			old = &destination{}
			s.destinations[d.Target] = old
		}
		old.weight = d.Weight
	}
	for target := range s.destinations {
		s.changed[target] = true
	}
}

// isGone records that the kernel does not have the virtual server.
func (s *server) isGone() {
	s.exists = false
	for target, d := range s.destinations {
		d.weight = absent
		s.changed[target] = true
	}
}

// drains reports whether connections of a protocol go on after their endpoint was removed.
func drains(p model.Protocol) bool { return p == model.TCP }

// grow creates the virtual server and the real servers that take new connections. From then on, those that were removed
// take none.
func (s *server) grow(ctx context.Context, d dp.Interface, now time.Time) error {
	if !s.wanted {
		return nil
	}
	s.err = nil
	if err := s.put(ctx, d); isRefusal(err) {
		if s.err = err; !s.exists {
			return nil
		}
	} else if err != nil {
		return err
	}
	// Real servers that take new connections come before those that no longer do: there must always be one.
	targets := slices.SortedFunc(maps.Keys(s.changed), func(a, b netip.AddrPort) int {
		return cmp.Or(s.rank(a)-s.rank(b), model.CompareTargets(a, b))
	})
	for _, target := range targets {
		delete(s.refused, target)
		err := s.growDestination(ctx, d, target, now)
		if err != nil {
			err = fmt.Errorf("virtual server %v, endpoint %v: %w", s.key, target, err)
		}
		if isRefusal(err) {
			s.refuse(target, err)
			delete(s.changed, target)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// put creates the virtual server, or changes it.
func (s *server) put(ctx context.Context, d dp.Interface) error {
	switch {
	case !s.exists:
		if err := d.AddServer(ctx, s.want); err != nil {
			return fmt.Errorf("add virtual server %v: %w", s.key, err)
		}
	case s.actual != s.want:
		if err := d.UpdateServer(ctx, s.want); err != nil {
			return fmt.Errorf("change virtual server %v: %w", s.key, err)
		}
	}
	s.actual, s.exists = s.want, true
	return nil
}

// rank orders the changes of endpoints.
func (s *server) rank(target netip.AddrPort) int {
	if d := s.destinations[target]; d != nil && d.role == active {
		return 0
	}
	return 1
}

func (s *server) growDestination(ctx context.Context, d dp.Interface, target netip.AddrPort, now time.Time) error {
	x := s.destinations[target]
	if x == nil {
		delete(s.changed, target)
		return nil
	}
	switch {
	case x.role == active && x.weight == absent:
		if err := d.AddDestination(ctx, s.key, dp.Destination{Target: target, Weight: 1}); err != nil {
			return err
		}
		x.weight = 1
	case x.role == active && x.weight != 1:
		if err := d.UpdateDestination(ctx, s.key, dp.Destination{Target: target, Weight: 1}); err != nil {
			return err
		}
		x.weight = 1
	case x.role != active && x.weight == absent:
		delete(s.destinations, target)
	case x.role == gone && !drains(s.protocol):
		return nil // shrink deletes it
	case x.role != active && x.weight > 0:
		if err := d.UpdateDestination(ctx, s.key, dp.Destination{Target: target}); err != nil {
			return err
		}
		x.weight = 0
	}
	s.drainSince(target, x.role == gone && x.weight == 0, now)
	delete(s.changed, target)
	return nil
}

// drainSince notes since when a destination drains, if it does.
func (s *server) drainSince(target netip.AddrPort, drains bool, now time.Time) {
	if !drains {
		delete(s.draining, target)
	} else if s.draining[target].IsZero() {
		s.draining[target] = now
	}
}

// shrink deletes obsolete real servers, or the whole virtual server, without waiting for connections.
func (s *server) shrink(ctx context.Context, d dp.Interface, now time.Time) error {
	if s.wanted {
		var errs failures.List // one that cannot be deleted holds up no other
		for _, target := range slices.SortedFunc(maps.Keys(s.changed), model.CompareTargets) {
			if x := s.destinations[target]; x != nil && x.role == gone {
				if err := s.deleteDestination(ctx, d, target); err != nil {
					errs.Add(err)
					continue
				}
				delete(s.changed, target)
			}
		}
		if len(s.changed) == 0 { // iterating over a map that was once big takes long
			s.changed = map[netip.AddrPort]bool{}
		}
		return errs.Err()
	}
	if !s.exists {
		return nil
	}
	if drains(s.protocol) {
		busy, err := s.retire(ctx, d, now)
		if err != nil || busy {
			return err
		}
	}
	return s.delete(ctx, d)
}

// retire takes all endpoints out of a virtual server that has gone, if any of them has connections left. Connections
// that are closing do not count: they would keep the address for minutes.
func (s *server) retire(ctx context.Context, d dp.Interface, now time.Time) (busy bool, err error) {
	list, err := d.Destinations(ctx, s.key)
	if err != nil {
		return false, fmt.Errorf("endpoints of virtual server %v: %w", s.key, err)
	}
	if !slices.ContainsFunc(list, func(x dp.Destination) bool { return x.Active > 0 }) {
		return false, nil
	}
	for _, x := range list {
		old := s.destinations[x.Target]
		if old == nil {
			old = &destination{}
			s.destinations[x.Target] = old
		}
		old.role = gone
		s.drainSince(x.Target, true, now)
		if x.Weight > 0 {
			if err := d.UpdateDestination(ctx, s.key, dp.Destination{Target: x.Target}); err != nil {
				return false, fmt.Errorf("virtual server %v, endpoint %v: %w", s.key, x.Target, err)
			}
		}
		old.weight = 0
	}
	clear(s.changed)
	return true, nil
}

// deleteServer deletes a virtual server. It succeeds if another process has deleted it already.
func deleteServer(ctx context.Context, d dp.Interface, key dp.ServerKey) error {
	if err := d.DeleteServer(ctx, key); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete virtual server %v: %w", key, err)
	}
	return nil
}

func (s *server) delete(ctx context.Context, d dp.Interface) error {
	if err := deleteServer(ctx, d, s.key); err != nil {
		return err
	}
	s.exists = false
	clear(s.destinations)
	clear(s.changed)
	clear(s.draining)
	return nil
}

func (s *server) deleteDestination(ctx context.Context, d dp.Interface, target netip.AddrPort) error {
	err := d.DeleteDestination(ctx, s.key, target)
	if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("virtual server %v, delete endpoint %v: %w", s.key, target, err)
	}
	delete(s.destinations, target)
	delete(s.draining, target)
	return nil
}

// drain deletes endpoints that have gone, when their connections have ended or their time is over.
func (s *server) drain(ctx context.Context, d dp.Interface, now time.Time, limit time.Duration) error {
	list, err := d.Destinations(ctx, s.key)
	if err != nil {
		return fmt.Errorf("endpoints of virtual server %v: %w", s.key, err)
	}
	left := map[netip.AddrPort]dp.Destination{}
	for _, x := range list {
		left[x.Target] = x
	}
	var errs failures.List // one that cannot be deleted holds up no other
	for _, target := range slices.SortedFunc(maps.Keys(s.draining), model.CompareTargets) {
		busy := left[target].Active > 0 || s.wanted && left[target].Inactive > 0
		if busy && now.Sub(s.draining[target]) < limit {
			continue
		}
		errs.Add(s.deleteDestination(ctx, d, target))
	}
	if !s.wanted && len(s.draining) == 0 {
		return s.delete(ctx, d)
	}
	return errs.Err()
}
