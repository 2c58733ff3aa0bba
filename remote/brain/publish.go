package brain

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// publish makes a revision of what is pending, and sends it to the clients that it concerns.
func (s *Server) publish(ctx context.Context) {
	s.work.Lock()
	concerned := s.publishPending(ctx)
	s.work.Unlock()
	concerned.order()
	concerned.deliver()
}

// toDeliver are sessions that have something to deliver.
type toDeliver []*session

// announce tells a session that there is something new, from a change that was seen at a time, if that is known. The
// caller holds the Server's mu.
func (d *toDeliver) announce(c *session, seen time.Time) {
	if c.announce(seen) {
		*d = append(*d, c)
	}
}

// order puts sessions in the order in which they came, from a random one on, so that none is always the last. What
// clients that came one after the other have in memory is close together: gRPC's part of a delivery takes a fifth more
// processor time in a random order.
func (d toDeliver) order() {
	slices.SortFunc(d, func(a, b *session) int { return cmp.Compare(a.number, b.number) })
	if len(d) > 0 {
		first := rand.N(len(d))
		slices.Reverse(d[:first])
		slices.Reverse(d[first:])
		slices.Reverse(d)
	}
}

// heldUp is how long a delivery may take before the others go on without it.
const heldUp = 20 * time.Millisecond

// deliver delivers to one session after the other, and is called with no lock held. A client that acknowledges what it
// has not read can hold up whoever sends to it; then others take the rest, twice as many each time that all are held
// up: however many such clients there are, the rest is late by a few times heldUp.
func (d toDeliver) deliver() { forEach(len(d), func(i int) { d[i].deliver() }) }

// forEach calls a function for the numbers below n, one after the other unless it is held up.
func forEach(n int, f func(i int)) {
	var taken atomic.Int64
	end := make(chan struct{})
	var once sync.Once
	work := func() {
		for i := int(taken.Add(1)); i <= n; i = int(taken.Add(1)) {
			f(i - 1)
		}
		once.Do(func() { close(end) })
	}
	go work()
	watch := time.NewTicker(heldUp)
	defer watch.Stop()
	workers := 1
	for before := int64(0); ; {
		select {
		case <-end:
			return
		case <-watch.C:
			now := taken.Load()
			if now == before {
				for range workers {
					go work()
				}
				workers *= 2
			}
			before = now
		}
	}
}

// publishPending makes a revision of what is pending, and returns the sessions that it concerns. The caller holds work.
func (s *Server) publishPending(ctx context.Context) (concerned toDeliver) {
	now, seen := time.Now(), s.seen
	s.seen = time.Time{}
	classes, ok := s.classesInUse(now)
	if !ok {
		return nil
	}
	s.base.Discard()
	revision := s.revision + 1
	updates := make(map[*class]classUpdate, len(classes))
	for _, c := range classes {
		s.followBase(ctx, c)
		if update := c.workOut(ctx, revision, now); update.any() {
			updates[c] = update
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = false
	progress := s.progressed()
	for _, c := range classes {
		c.forget(now.Add(-s.opts.limits.keep), s.opts.KeepBytes)
	}
	for c, update := range updates {
		s.revision = revision
		if update.version != nil {
			update.version.progress = progress
		}
		c.install(update, s.sessions)
		for session := range c.concerned(s.sessions, update) {
			concerned.announce(session, seen)
		}
	}
	for name := range s.renewed {
		s.revision = revision
		for session := range s.sessions[name] {
			session.renew(s.nodes[name], revision)
			concerned.announce(session, seen)
		}
	}
	clear(s.renewed)
	return concerned
}

// followBase makes the current version of a class its base if the base is old. The caller holds work.
func (s *Server) followBase(ctx context.Context, c *class) {
	s.mu.Lock()
	lags := c.baseLags
	s.mu.Unlock()
	if lags {
		s.stateOf(ctx, c.current)
	}
}

// classesInUse returns the classes that have a state, and deletes those that nobody has used for limits.keep. It
// returns false before everything has been listed.
func (s *Server) classesInUse(now time.Time) (classes []*class, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.classes {
		switch {
		case c.current == nil:
		case len(c.sessions) == 0 && now.Sub(c.idle) > s.opts.limits.keep:
			delete(s.classes, key)
		default:
			classes = append(classes, c)
		}
	}
	return classes, s.synced
}

// makeClass makes a class, unless it exists or another session is making it. Sessions that have joined it are served
// when it is ready. Its first state is worked out without holding either lock, because that takes time; changes that
// come meanwhile wait in the class.
func (s *Server) makeClass(ctx context.Context, key localstate.Class) error {
	c, err := s.beginClass(key)
	if c == nil {
		return err
	}
	s.finishClass(c, c.workOut(klog.NewContext(ctx, s.log), 0, time.Now()))
	return nil
}

// beginClass returns a new class, whose first state the caller works out; or nil if the class exists already.
func (s *Server) beginClass(key localstate.Class) (*class, error) {
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

// finishClass takes the first state of a class.
func (s *Server) finishClass(c *class, first classUpdate) {
	var waiting toDeliver
	s.work.Lock()
	s.mu.Lock()
	c.catchUp()
	s.pending = true // what came meanwhile is not in the first state
	s.revision++
	first.version.revision, first.version.progress = s.revision, c.progress
	c.install(first, s.sessions)
	for session := range c.sessions {
		waiting.announce(session, time.Time{})
	}
	s.mu.Unlock()
	s.work.Unlock()
	s.signal()
	waiting.deliver()
}

// addClass adds a class without a state. It returns nil if the class exists already. The caller holds work.
func (s *Server) addClass(key localstate.Class) (*class, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.classes[key] != nil {
		return nil, nil
	}
	if len(s.classes) >= s.opts.limits.maxClasses {
		for old, c := range s.classes {
			if len(c.sessions) == 0 && c.current != nil {
				delete(s.classes, old)
			}
		}
		if len(s.classes) >= s.opts.limits.maxClasses {
			return nil, fmt.Errorf("there are already %d classes of nodes (zones and options that differ)",
				len(s.classes))
		}
	}
	c := newClass(key, s.zoneOf, &s.zips)
	s.classes[key] = c
	return c, nil
}
