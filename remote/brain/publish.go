package brain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// publish makes a revision of the pending changes, and sends it to the clients that it affects. It returns how long it
// took to compute.
func (s *Server) publish(ctx context.Context) (work time.Duration) {
	s.work.Lock()
	begin := time.Now()
	concerned := s.publishPending(ctx)
	work = time.Since(begin)
	s.work.Unlock()
	concerned.order()
	concerned.deliver()
	return work
}

// publishPending makes a revision of the pending changes, and returns the clients that it affects. The caller holds
// work.
func (s *Server) publishPending(ctx context.Context) (concerned toDeliver) {
	now, seen := time.Now(), s.seen
	s.seen = time.Time{}
	classes, ok := s.classesInUse(now)
	if !ok {
		return nil
	}
	s.base.Discard()
	revision := s.revision + 1
	updates := make(map[*group]classUpdate, len(classes))
	for _, c := range classes {
		s.followBase(ctx, c)
		if update := c.workOut(ctx, revision, now); update.any() {
			updates[c] = update
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = false
	s.announceNodeVIPs(revision, seen, &concerned)
	progress := s.progressed()
	for _, c := range classes {
		c.forget(now.Add(-s.limits.keep), s.opts.KeepBytes)
	}
	for c, update := range updates {
		s.revision = revision
		if update.version != nil {
			update.version.progress = progress
		}
		s.install(c, update, seen, &concerned)
	}
	for name := range s.renewed {
		s.revision = revision
		for client := range s.byNode[name] {
			client.renew(s.nodes[name], revision)
			remove(s.byZone, client.zone, client)
			client.zone = client.tracker.Class().Zone
			insert(s.byZone, client.zone, client)
			s.await(client)
			concerned.announce(client, seen)
		}
	}
	clear(s.renewed)
	s.followZones(revision, seen, &concerned)
	return concerned
}

// announceNodeVIPs announces other NodeVIPs to all clients. The caller holds both locks.
func (s *Server) announceNodeVIPs(revision uint64, seen time.Time, concerned *toDeliver) {
	for _, g := range s.classes {
		if g.current == nil || g.progress.nodeVIPs == s.source.nodeVIPs {
			continue
		}
		for c := range g.clients {
			s.revision, c.renewed = revision, revision
			concerned.announce(c, seen)
		}
	}
}

// install makes an update the current state of a class, and announces it to the clients that it affects: all of the
// class if the shared state changed, otherwise those of nodes whose parts changed or have yet to be computed. The
// caller holds both locks.
func (s *Server) install(g *group, update classUpdate, seen time.Time, concerned *toDeliver) {
	g.install(update)
	for _, node := range slices.AppendSeq(update.foreign, maps.Keys(update.own)) {
		for c := range s.byNode[node] {
			if c.class != &g.class {
				continue
			}
			c.own = update.own[node]
			if c.foreign = c.own == nil; update.version == nil {
				concerned.announce(c, seen)
			}
		}
	}
	if update.version != nil {
		for c := range g.clients {
			concerned.announce(c, seen)
		}
	}
	g.forgetNodes(func(node string) bool { return len(s.byNode[node]) > 0 })
}

// followBase moves the base of a class to its current version if it is too far behind. The caller holds work.
func (s *Server) followBase(ctx context.Context, c *group) {
	s.mu.Lock()
	lags := c.baseLags
	s.mu.Unlock()
	if lags {
		c.current.state(ctx)
	}
}

// enterClass moves a client to the class of its node, which may have to be created or to compute the parts of the node
// first. The caller holds mu; meanwhile it is not held.
func (s *Server) enterClass(c *client) error {
	for {
		key := s.classFor(c)
		if err := s.choose(c, key); err != nil {
			return s.metrics.refuse("classes_of_node", codes.ResourceExhausted, err)
		}
		g := s.classes[key]
		if g != nil && !g.isForeign(c.node) {
			s.joinClass(c, g)
			return nil
		}
		s.mu.Unlock()
		err := s.prepare(c, key, g)
		s.mu.Lock()
		if made := s.classes[key]; g == nil && made != nil && len(made.clients) == 0 {
			made.last = c.principal()
		}
		switch {
		case err == nil:
		case !errors.Is(err, errTooManyClasses):
			return err
		case key.Zone == "": // otherwise others took the last class meanwhile: try again
			return s.metrics.refuse("classes", codes.ResourceExhausted, err)
		}
	}
}

// prepare creates a class, or has it keep the parts of a client's node if it exists. It waits for the slot of the
// client's principal. The caller holds no lock.
func (s *Server) prepare(c *client, key localstate.Class, g *group) error {
	done, err := s.classSlots.take(c.ctx, c.principal())
	if err != nil {
		return err
	}
	defer done()
	if g == nil {
		return s.makeClass(c.ctx, key)
	}
	s.adopt(c.ctx, g, c.node)
	return nil
}

// makeClass creates a class, unless it exists or another client is creating it; clients that have joined it are served
// when it is ready. Computing the first state takes time, so neither lock is held meanwhile: the class queues the
// changes that arrive.
func (s *Server) makeClass(ctx context.Context, key localstate.Class) error {
	c, err := s.beginClass(key)
	if c == nil {
		return err
	}
	s.finishClass(c, c.workOut(klog.NewContext(ctx, s.log), 0, time.Now()))
	return nil
}

// beginClass returns a new class, whose first state the caller computes; or nil if the class exists already.
func (s *Server) beginClass(key localstate.Class) (*group, error) {
	s.work.Lock()
	defer s.work.Unlock()
	c, err := s.addClass(key)
	if c != nil {
		c.cluster = s.base.ForClass(key)
		begun := s.source
		c.progress = &begun
	}
	return c, err
}

// finishClass installs the first state of a class.
func (s *Server) finishClass(c *group, first classUpdate) {
	var waiting toDeliver
	s.work.Lock()
	s.mu.Lock()
	c.catchUp()
	s.pending = true // the first state lacks the changes that arrived meanwhile
	s.revision++
	first.version.revision, first.version.progress = s.revision, c.progress
	s.install(c, first, time.Time{}, &waiting)
	s.awaitAll(c.key.Zone) // clients that were without their zone: the next revision moves them
	s.mu.Unlock()
	s.work.Unlock()
	signal(s.changed)
	waiting.deliver()
}

// adopt makes a class keep the parts of a node. It also adopts other nodes that belong to the class by now, because it
// has to look at every endpoint anyway.
func (s *Server) adopt(ctx context.Context, c *group, node string) {
	s.work.Lock()
	concerned := s.adoptNow(ctx, c, node)
	s.work.Unlock()
	concerned.deliver()
}

// adoptNow is adopt for a caller that holds work. It returns the clients to deliver to.
func (s *Server) adoptNow(ctx context.Context, c *group, node string) (concerned toDeliver) {
	if !c.isForeign(node) {
		return nil
	}
	concerned = s.publishPending(ctx) // so that the parts are those of the newest version
	adopted := map[string]struct{}{node: {}}
	for other := range c.foreign {
		if c.belongs(other) {
			adopted[other] = struct{}{}
		}
	}
	isAdopted := func(node string) bool {
		_, is := adopted[node]
		return is
	}
	revision := s.revision + 1
	keep := func(node string) bool { return isAdopted(node) || c.own[node] != nil }
	own := c.ownOf(c.cluster.ServicesOn(isAdopted), keep, c.allParts, revision)
	for node := range adopted {
		if own[node] == nil {
			own[node] = &ownParts{revision: revision}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = revision
	maps.DeleteFunc(c.foreign, func(node string, _ struct{}) bool { return isAdopted(node) })
	s.install(c, classUpdate{own: own}, time.Time{}, &concerned)
	return concerned
}
