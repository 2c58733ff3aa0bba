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

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// server is a virtual server.
type server struct {
	key      dp.ServerKey
	protocol model.Protocol // also of one by mark

	// What is wanted: nothing if no service port owns it.
	owner    *port
	want     dp.Server
	set      model.EndpointSets // that it balances over
	chain    string             // that packets to it go to, in the filter
	nodePort bool               // it serves a node port, at an address of the node
	// clusterIP: its address is a cluster IP. Without an owner, this is as last known.
	clusterIP bool

	shown string // the chain that the filter's element for it has, "" for none

	undeleted failures.Lines // about what could not be deleted

	// The state in the kernel, as far as it is known.
	actual dp.Server
	exists bool

	destinations map[netip.AddrPort]*destination
	changed      map[netip.AddrPort]bool // destinations that may have to be changed
	draining     map[netip.AddrPort]bool // destinations that were removed

	taken    bool                     // it was taken over from another program by the last grow
	excluded bool                     // it must not take over that of another program
	barred   bool                     // it would take the node's connections to an API server: it must not exist
	blocked  bool                     // it cannot exist: it is barred, or excluded and another program's is there
	err      error                    // why it is not as it is wanted
	refused  map[netip.AddrPort]error // why a destination is not
}

// destination is a real server.
type destination struct {
	role   role // wanted
	weight int  // absent if the kernel does not have it
}

const absent = -1

// role says which connections a real server serves.
type role uint8

const (
	gone    role = iota // existing TCP connections
	serving             // existing connections
	active              // new connections as well
)

// assign gives an endpoint in some backend sets its role. One that is not in the virtual server's set, or is draining,
// only serves its existing connections.
func (s *server) assign(target netip.AddrPort, sets model.EndpointSets) {
	r := gone
	switch {
	case sets.Has(s.set):
		r = active
	case sets != 0:
		r = serving
	}
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
	for target, d := range s.destinations {
		d.weight = absent
		s.changed[target] = true
	}
	for _, d := range list {
		old := s.destinations[d.Target]
		if old == nil {
			old = &destination{}
			s.destinations[d.Target] = old
		}
		old.weight = d.Weight
		s.changed[d.Target] = true
	}
}

// lose records that the kernel does not have the virtual server.
func (s *server) lose() {
	s.adopt(dp.Server{}, nil)
	s.exists, s.blocked = false, false
	clear(s.draining)
}

// serves reports whether the kernel has the virtual server, with an endpoint that takes new connections.
func (s *server) serves() bool {
	if !s.exists {
		return false
	}
	for _, d := range s.destinations {
		if d.weight > 0 {
			return true
		}
	}
	return false
}

// forget records that the virtual server has no endpoints.
func (s *server) forget() {
	s.exists = false
	s.destinations = map[netip.AddrPort]*destination{}
	s.changed = map[netip.AddrPort]bool{}
	s.draining = map[netip.AddrPort]bool{}
}

// drains reports whether connections of a protocol go on after their endpoint was removed.
func drains(p model.Protocol) bool { return p == model.TCP }

// grow creates the virtual server and the real servers that take new connections. From then on, those that were removed
// take none.
func (s *server) grow(ctx context.Context, d dp.Interface) error {
	if s.owner == nil {
		return nil
	}
	s.err, s.taken = nil, false
	if s.barred {
		s.blocked = true
		s.err = fmt.Errorf("%v: %w", s.key, errAPIServer)
		return s.note(ctx, s.delete(ctx, d))
	}
	err := s.put(ctx, d)
	if isStale(err) {
		// Another program has changed the virtual server, or made one there: that is taken over with its connections.
		there := s.exists && !errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EEXIST)
		list, readErr := d.Destinations(ctx, s.key)
		if readErr == nil {
			s.taken = there && !s.exists
			s.adopt(dp.Server{}, list)
			s.exists = there
			readErr = s.put(ctx, d)
		}
		err = readErr
	}
	return s.note(ctx, err)
}

// isStale reports whether an error means that the kernel does not have what it was last known to have.
func isStale(err error) bool {
	return errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT)
}

// note notes the error of a request about the virtual server. It returns those that are about the kernel as a whole.
func (s *server) note(ctx context.Context, err error) error {
	if s.owner == nil || err == nil || concernsAll(err) {
		return logged(ctx, &s.undeleted, err)
	}
	s.err = errors.Join(s.err, err)
	return nil
}

// put creates the virtual server, or changes it, with its real servers.
func (s *server) put(ctx context.Context, d dp.Interface) (err error) {
	switch {
	case !s.exists:
		err = d.AddServer(ctx, s.want)
		if s.blocked = s.excluded && errors.Is(err, syscall.EEXIST); s.blocked {
			s.err = fmt.Errorf("%v is a virtual server of another program", s.key)
			return nil
		}
	case s.actual != s.want:
		err = d.UpdateServer(ctx, s.want)
	}
	if err == nil {
		s.actual, s.exists = s.want, true
	} else if !s.exists || isStale(err) || concernsAll(err) {
		return err
	}
	return errors.Join(err, s.applyRoles(ctx, d))
}

// applyRoles applies the roles of the endpoints that have changed. An endpoint that is refused affects no other one.
func (s *server) applyRoles(ctx context.Context, d dp.Interface) error {
	// Real servers that take new connections come before those that no longer do: there must always be one.
	rank := func(target netip.AddrPort) int {
		if x := s.destinations[target]; x != nil && x.role == active {
			return 0
		}
		return 1
	}
	targets := slices.SortedFunc(maps.Keys(s.changed), func(a, b netip.AddrPort) int {
		return cmp.Or(rank(a)-rank(b), model.CompareTargets(a, b))
	})
	s.changed = map[netip.AddrPort]bool{} // iterating over a map that was once big takes long
	for i, target := range targets {
		delete(s.refused, target)
		switch err := s.applyRole(ctx, d, target); {
		case err == nil:
		case isStale(err) || concernsAll(err):
			for _, untried := range targets[i:] {
				s.changed[untried] = true
			}
			return err
		default:
			if s.refused == nil {
				s.refused = map[netip.AddrPort]error{}
			}
			s.refused[target] = err
		}
	}
	return nil
}

func (s *server) applyRole(ctx context.Context, d dp.Interface, target netip.AddrPort) error {
	x := s.destinations[target]
	if x == nil {
		return nil
	}
	if x.role != gone || x.weight == absent {
		delete(s.draining, target)
	} else {
		s.draining[target] = true
	}
	switch {
	case x.role == active:
		return s.setWeight(ctx, d, target, 1)
	case x.weight == absent:
		delete(s.destinations, target)
	case x.role == serving || drains(s.protocol):
		return s.setWeight(ctx, d, target, 0)
	}
	return nil // shrink deletes it
}

// setWeight gives an endpoint a weight.
func (s *server) setWeight(ctx context.Context, d dp.Interface, target netip.AddrPort, weight int) (err error) {
	x, next := s.destinations[target], dp.Destination{Target: target, Weight: weight}
	switch x.weight {
	case weight:
	case absent:
		err = d.AddDestination(ctx, s.key, next)
	default:
		err = d.UpdateDestination(ctx, s.key, next)
	}
	if err == nil {
		x.weight = weight
	}
	return err
}

// shrink deletes obsolete real servers, or the whole virtual server, without waiting for connections.
func (s *server) shrink(ctx context.Context, d dp.Interface) error {
	switch {
	case s.owner != nil && drains(s.protocol):
		return nil
	case s.owner != nil:
		return s.deleteDraining(ctx, d, func(netip.AddrPort) bool { return true })
	case s.exists && drains(s.protocol):
		list, err := d.Destinations(ctx, s.key)
		if err != nil {
			return err
		}
		// Connections that are closing do not count: they would keep the address for minutes.
		if slices.ContainsFunc(list, func(x dp.Destination) bool { return x.Active > 0 }) {
			return s.retire(ctx, d, list)
		}
	}
	return s.delete(ctx, d)
}

// retire takes all endpoints out of a virtual server that is no longer wanted.
func (s *server) retire(ctx context.Context, d dp.Interface, list []dp.Destination) error {
	s.adopt(s.actual, list)
	for _, x := range s.destinations {
		x.role = gone
	}
	return s.applyRoles(ctx, d)
}

func (s *server) delete(ctx context.Context, d dp.Interface) error {
	if s.exists {
		if err := d.DeleteServer(ctx, s.key); err != nil {
			return err
		}
	}
	s.forget()
	return nil
}

// deleteDraining deletes the draining endpoints that are done.
func (s *server) deleteDraining(ctx context.Context, d dp.Interface, done func(netip.AddrPort) bool) error {
	var errs failures.List // one that cannot be deleted holds up no other
	for _, target := range slices.SortedFunc(maps.Keys(s.draining), model.CompareTargets) {
		if !done(target) {
			continue
		}
		if err := d.DeleteDestination(ctx, s.key, target); err != nil {
			errs.Add(err)
			continue
		}
		delete(s.destinations, target)
		delete(s.draining, target)
	}
	return errs.Err()
}

// drain deletes removed endpoints whose connections have ended.
func (s *server) drain(ctx context.Context, d dp.Interface) error {
	if s.owner == nil {
		return s.shrink(ctx, d)
	}
	list, err := d.Destinations(ctx, s.key)
	if err != nil {
		return err
	}
	busy := map[netip.AddrPort]bool{}
	for _, x := range list {
		busy[x.Target] = x.Active > 0 || x.Inactive > 0
	}
	return s.deleteDraining(ctx, d, func(target netip.AddrPort) bool { return !busy[target] })
}

// servers are the virtual servers of a family. Each of them is wanted by a service port, or was last known to be in the
// kernel; one that is neither is forgotten when it settles. The other fields say which of them need attention.
type servers struct {
	byKey    map[dp.ServerKey]*server
	dirty    map[*server]bool // to apply; a commit that fails reads all of them again
	draining map[*server]int  // endpoints that drain, also of those that could not be deleted

	endpointsDraining int // of all virtual servers
}

func newServers() *servers {
	return &servers{byKey: map[dp.ServerKey]*server{}, dirty: map[*server]bool{}, draining: map[*server]int{}}
}

// at returns the virtual server with a key, for a caller that makes it wanted or knows that it is there.
func (v *servers) at(key dp.ServerKey) *server {
	s := v.byKey[key]
	if s == nil {
		// If it is by mark and was read, its protocol is not known: it may have connections to wait for.
		s = &server{key: key, protocol: cmp.Or(key.Protocol, model.TCP)}
		s.forget()
		v.byKey[key] = s
	}
	v.dirty[s] = true
	return s
}

// takeDirty returns the virtual servers to apply. From now on they are not dirty.
func (v *servers) takeDirty() []*server {
	dirty := sortedServers(v.dirty)
	v.dirty = map[*server]bool{} // iterating over a map that was once big takes long
	return dirty
}

func sortedServers[V any](m map[*server]V) []*server {
	return slices.SortedFunc(maps.Keys(m), func(a, b *server) int { return a.key.Compare(b.key) })
}

// settle records how a virtual server is after it has changed.
func (v *servers) settle(s *server) {
	v.endpointsDraining += len(s.draining) - v.draining[s]
	if len(s.draining) > 0 || s.owner == nil && s.exists {
		v.draining[s] = len(s.draining)
	} else {
		delete(v.draining, s)
	}
	if s.owner == nil && !s.exists {
		delete(v.byKey, s.key)
	}
}
