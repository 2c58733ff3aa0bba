package brain

import (
	"context"
	"maps"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// namedZones are the zones that topology hints name. On a node in another zone everything is as on a node without a
// zone (S22), so the class without a zone serves it, and a cluster whose racks are labelled as zones has one class.
//
// When a hint names a zone for the first time, its nodes keep the class that they have until that of the zone is
// complete: meanwhile they use endpoints of all zones. When the last hint that names the zone is gone, they stay in the
// class of the zone, in which everything is as in that without a zone, until they connect again, 45 minutes later at
// most. So a hint that comes and goes moves a client once for each stream, and its class is computed once.
//
// The Server's mu guards it, and named is written with work held as well.
type namedZones struct {
	named   map[string]struct{}
	fresh   map[string]struct{}           // of named, those that were not at the last revision
	awaited map[localstate.Class]struct{} // to which clients of a class without a zone will move
}

func newNamedZones() namedZones {
	return namedZones{named: map[string]struct{}{}, fresh: map[string]struct{}{},
		awaited: map[localstate.Class]struct{}{}}
}

// counts reports whether the zone of a class may make a difference to its state.
func (z *namedZones) counts(key localstate.Class) bool {
	_, is := z.named[key.Zone]
	return is && !key.NoZoneHints
}

func (z *namedZones) isAwaited(key localstate.Class) bool {
	_, is := z.awaited[key]
	return is
}

func (z *namedZones) isFresh(zone string) bool {
	_, is := z.fresh[zone]
	return is
}

func withoutZone(key localstate.Class) localstate.Class {
	key.Zone = ""
	return key
}

// classFor returns the class that is to serve a client now:
//
//	the zone of its node                          class
//	is that of its class                          the same: it does not move
//	is named by no hint, or hints do not count    without a zone, or that of the zone if there is no room for it
//	is named, while it has that without a zone    that of the zone once that is up to date: see followZones
//	is named, and the client has a state from
//	here, which may be newer than the class       without a zone, if there is that, until that of the zone is up to date
//	is named                                      that of the zone or, if the limit does not allow it, without a zone
//
// The caller holds mu.
func (s *Server) classFor(c *client) localstate.Class {
	key := c.tracker.Class()
	without, g := withoutZone(key), s.classes[key]
	switch {
	case c.class != nil && c.class.key == key:
		return key
	case !s.named.counts(key):
		if g != nil && s.classes[without] == nil && !s.mayAddClass(without) {
			return key // it is as good
		}
	case c.class != nil && c.class.key == without:
		if g != nil && g.current != nil && !s.named.isAwaited(key) && !s.named.isFresh(key.Zone) && s.mayUse(c, key) {
			return key
		}
	case (s.named.isAwaited(key) || s.named.isFresh(key.Zone)) && s.classes[without] != nil &&
		(c.class != nil || c.resumesHere()):
	case g != nil || s.mayAddClass(key):
		return key
	}
	return without
}

// mayUse reports whether the principal of a client may use another class, see choose. The caller holds mu.
func (s *Server) mayUse(c *client, key localstate.Class) bool {
	return len(s.classesOf(c, key)) <= maxClassesPerPrincipal
}

// isWithoutZone reports whether a client is served without its zone because of a limit. The caller holds mu.
func (s *Server) isWithoutZone(c *client) bool {
	key := c.tracker.Class()
	// If the zone is fresh, the next revision awaits its class.
	return s.waits(c, key) && !s.named.isAwaited(key) && !s.named.isFresh(key.Zone)
}

// waits reports whether a client has the class without a zone but should have another one; other clients in that zone
// may have other options. The caller holds mu.
func (s *Server) waits(c *client, key localstate.Class) bool {
	return c.class != nil && c.class.key != key && c.class.key == withoutZone(key) && s.named.counts(key) &&
		c.tracker.Class() == key
}

// belongs reports whether a class serves a node: by its zone, or because a client of the node has or awaits the class.
// The caller holds mu.
func (s *Server) belongs(g *group, node string) bool {
	zone := s.zoneOf(node)
	if zone == g.key.Zone || g.key.Zone == "" && !s.named.counts(localstate.Class{Zone: zone,
		NoZoneHints: g.key.NoZoneHints}) {
		return true
	}
	for c := range s.byNode[node] {
		if c.class == &g.class || c.chosen != nil && *c.chosen == g.key || s.waits(c, g.key) {
			return true
		}
	}
	return false
}

// noteZones records which zones hints name now. The caller holds work.
func (s *Server) noteZones() {
	changed := s.base.ChangedZones()
	if len(changed) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	z := &s.named
	for zone, named := range changed {
		if named {
			z.named[zone], z.fresh[zone] = struct{}{}, struct{}{}
		} else {
			delete(z.named, zone)
			delete(z.fresh, zone)
		}
	}
}

// await makes a client move to the class of its zone once that is complete, if it has the one without a zone. The
// caller holds mu.
func (s *Server) await(c *client) {
	if key := c.tracker.Class(); s.waits(c, key) {
		s.named.awaited[key] = struct{}{}
	}
}

// awaitAll makes the clients of a zone move to its classes, once these are complete. The caller holds mu.
func (s *Server) awaitAll(zone string) {
	if zone == "" {
		return
	}
	for c := range s.byZone[zone] {
		s.await(c)
	}
}

// followZones moves clients to the classes of zones that hints have begun to name, if these are complete, and has the
// others made. All classes have been brought up to date, so no client goes back. The caller holds work and mu.
func (s *Server) followZones(revision uint64, seen time.Time, concerned *toDeliver) {
	z := &s.named
	for zone := range z.fresh {
		s.awaitAll(zone)
	}
	moved, toNew := map[string]struct{}{}, false
	for key := range z.awaited {
		g := s.classes[key]
		if g == nil {
			signal(s.awaited)
		}
		if g == nil || g.current == nil {
			continue
		}
		delete(z.awaited, key)
		isNew := z.isFresh(key.Zone) || !g.followed
		for c := range s.byZone[key.Zone] {
			if s.waits(c, key) && s.move(c, g) {
				s.revision, c.renewed = revision, revision
				g.followed, toNew = true, toNew || isNew
				moved[c.node] = struct{}{}
				concerned.announce(c, seen)
			}
		}
	}
	clear(z.fresh)
	for key, g := range s.classes {
		if key.Zone != "" || g.current == nil || len(moved) == 0 {
			continue
		}
		candidates := maps.Keys(moved)
		if toNew { // also nodes that have no client
			candidates = maps.Keys(g.own)
		}
		g.makeForeign(func(yield func(string) bool) {
			for node := range candidates {
				if !s.belongs(g, node) && !yield(node) {
					return
				}
			}
		})
	}
}

// move moves a client to a class that has a state, unless its principal uses too many. The caller holds mu.
func (s *Server) move(c *client, g *group) bool {
	if !s.mayUse(c, g.key) {
		return false
	}
	if c.value = nil; g.isForeign(c.node) { // the options name the zone, not the Node: the client has its node adopted
		return true
	}
	if err := s.choose(c, g.key); err != nil {
		return false
	}
	s.joinClass(c, g)
	return true
}

// makeAwaited makes the awaited classes until ctx ends, one after the other. Their clients are served meanwhile, so
// there are pauses like between those of one principal: hints are written by tenants.
func (s *Server) makeAwaited(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.awaited:
		}
		for more := true; more; {
			done, err := s.classSlots.take(ctx, principal{})
			if err != nil {
				return
			}
			more = s.makeNextAwaited(ctx)
			done()
		}
	}
}

// makeNextAwaited makes one class that clients are to move to; it returns false if there is none.
func (s *Server) makeNextAwaited(ctx context.Context) bool {
	s.mu.Lock()
	key, ok := s.nextAwaited()
	s.mu.Unlock()
	if !ok {
		return false
	}
	if err := s.makeClass(ctx, key); err != nil { // the limit does not allow it
		s.mu.Lock()
		if s.classes[key] == nil { // otherwise a client has made it meanwhile
			delete(s.named.awaited, key)
		}
		s.mu.Unlock()
	}
	return true
}

// nextAwaited returns an awaited class that does not exist, and drops those that no client waits for any more. The
// caller holds mu.
func (s *Server) nextAwaited() (localstate.Class, bool) {
	for key := range s.named.awaited {
		if s.classes[key] != nil {
			continue // followZones moves the clients when it is complete
		}
		for c := range s.byZone[key.Zone] {
			if s.waits(c, key) && s.mayUse(c, key) {
				return key, true
			}
		}
		delete(s.named.awaited, key)
	}
	return localstate.Class{}, false
}
