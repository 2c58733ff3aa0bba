package brain

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// firstBeat is how soon a client hears something for which there is no state yet. It knows neither that the server is
// there nor how often it will say so.
const firstBeat = time.Second

// start begins to send the client its state, and heartbeats, until stop.
func (c *session) start() {
	c.mu.Lock()
	c.heartbeat = time.AfterFunc(min(firstBeat, c.server.opts.limits.heartbeat), c.beat)
	c.mu.Unlock()
	if c.begin() {
		go c.send()
	}
}

// stop waits until no goroutine sends any more. It is called after the end of the stream, so no send can block.
func (c *session) stop() {
	c.mu.Lock()
	c.closed = true
	c.heartbeat.Stop()
	if c.wake != nil {
		c.wake.Stop()
	}
	c.mu.Unlock()
	c.senders.Wait()
}

// announce notes that there is something new, and reports whether it can be delivered now. It cannot while the client
// has a batch in flight; it is sent after the acknowledgement.
func (c *session) announce(seen time.Time) (deliverable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = true
	if c.newsSeen.IsZero() {
		c.newsSeen = seen
	}
	return !c.busy && !c.sends && !c.holds()
}

// holds reports whether news has to wait because the client would not apply it yet, and sees to it that it is sent then.
// Sent at once, it would keep what comes after it from the client until the next time that it applies something. The
// caller holds the session's mu.
func (c *session) holds() bool {
	if c.rests.IsZero() {
		return false
	}
	wait := time.Until(c.rests)
	if wait <= 0 {
		return false
	}
	if c.behind.IsZero() {
		c.behind = time.Now()
	}
	switch {
	case c.closed || c.wakes:
		return true
	case c.wake == nil:
		c.wake = time.AfterFunc(wait, c.rested)
	default:
		c.wake.Reset(wait)
	}
	c.wakes = true
	return true
}

// rested sends what has waited.
func (c *session) rested() {
	c.mu.Lock()
	c.wakes = false
	c.mu.Unlock()
	if c.begin() {
		c.send()
	}
}

// begin makes the caller the sender if there is news, the client has nothing in flight, and nobody else is sending. The
// caller then calls finish when it has sent.
func (c *session) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sends || c.closed || !c.takeNews() {
		return false
	}
	c.sends = true
	c.senders.Add(1)
	return true
}

// finish ends what begin began, unless there is more to send by now: then it returns true, and the caller goes on
// sending. err is the error of sending, which ends the stream.
func (c *session) finish(err error) (again bool) {
	if err != nil {
		c.end(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && !c.closed && c.takeNews() {
		return true
	}
	c.sends = false
	c.senders.Done()
	return false
}

// takeNews reports whether there is news to send now, and marks it as seen. Once the stream is about to end there is
// none: its client may not even have a state. The caller holds the session's mu.
func (c *session) takeNews() bool {
	look := c.news && !c.busy && c.cause == nil && !c.holds()
	if look {
		c.news, c.sentSeen, c.newsSeen = false, c.newsSeen, time.Time{}
	}
	return look
}

// send brings the client up to date. It is called after begin, and may take long: the client may be slow, and its class
// may have to be made first.
func (c *session) send() {
	for again := true; again; {
		again = c.finish(c.sendNews())
	}
}

func (c *session) sendNews() error {
	view, batches, ok, err := c.newest()
	if ok && !c.introduced && c.goesBack(view) {
		view, batches, ok, err = c.catchUp()
	}
	switch {
	case err != nil || !ok: // until there is a state, heartbeats show the client that the server is alive
		return err
	case !c.introduced:
		err = c.introduce(view, batches, c.resume)
		c.introduced, c.resume, c.seen = true, nil, nil
		return err
	case c.verify:
		c.verify = false
		if err := c.sendHeartbeat(); err != nil {
			return err
		}
	}
	return c.advance(view, batches)
}

// deliver sends what is new. It is quick, so that one goroutine can do it for all clients: it sends one message that
// the clients of a class share, and leaves anything else to another goroutine. Normally that message does not block,
// because the client has acknowledged everything before it but heartbeats. toDeliver deals with clients that have
// acknowledged what they have not read.
func (c *session) deliver() {
	if !c.begin() {
		return
	}
	if f := c.sharedNews(); f == nil || c.finish(c.sendFrame(f)) {
		go c.send()
	}
}

// sharedNews returns the message that brings the client up to date, and notes it as sent. It returns nil if the client
// needs more than that, or something else than the other clients of its class.
func (c *session) sharedNews() *wire.Frame {
	view, b, ok := c.sharedView()
	if !ok || !c.introduced || c.verify {
		return nil
	}
	c.mu.Lock()
	has := c.has
	c.mu.Unlock()
	if has.version == nil || has.version == view.version {
		return nil
	}
	f := c.server.difference(c.ctx, b, has.version, view.version).wholeFor(has, view)
	if f != nil {
		c.server.metrics.diff.Inc()
		c.sending(view)
	}
	return f
}

// beat sends a heartbeat if nothing else has been sent for long enough, and the server is up to date.
func (c *session) beat() {
	every := c.server.opts.limits.heartbeat
	if !c.expires.IsZero() && time.Now().After(c.expires) {
		c.end(status.Error(codes.Unauthenticated, "the client's certificate has expired"))
		return
	}
	fresh := c.server.fresh() == nil
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	busy := c.busy || c.sends
	if late := time.Since(c.until); late > 0 && !busy || late > c.server.opts.limits.maxOverdue {
		c.mu.Unlock()
		c.end(status.Error(codes.Aborted, "the stream is old: connect again, to any server"))
		return
	}
	silent := time.Since(c.spoke)
	due := silent >= every && !c.sends && fresh
	if due {
		c.sends = true
		c.senders.Add(1)
	}
	if silent >= every {
		silent = 0
	}
	c.heartbeat.Reset(every - silent)
	c.mu.Unlock()
	if due && c.finish(c.sendHeartbeat()) {
		c.send()
	}
}

func (c *session) sendHeartbeat() error {
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT,
		HeartbeatMillis: uint32(c.server.opts.limits.heartbeat.Milliseconds())}
	c.mu.Lock()
	has := c.has
	if c.busy {
		has = nodeView{}
	}
	c.spoke = time.Now()
	c.mu.Unlock()
	if has.version != nil {
		beat.Sync = &remotev1.Sync{Revision: has.revision, Digest: has.digest()}
	}
	return c.stream.SendMsg(beat)
}

// opening is the beginning of the first message of a stream. Revisions are those of one class of one server: nodes of
// another one have another state at the same revision.
func (c *session) opening(kind remotev1.Kind, view nodeView) *remotev1.Update {
	return &remotev1.Update{Kind: kind, InstanceID: c.server.instanceOf(view.class),
		HeartbeatMillis: uint32(c.server.opts.limits.heartbeat.Milliseconds())}
}

func (s *Server) instanceOf(c *class) string { return s.instance + "-" + c.id }

// advance sends the difference between what the client has and the newest.
func (c *session) advance(view nodeView, b *batches) error {
	c.mu.Lock()
	has := c.has
	same := has.same(view)
	if same {
		c.behind = time.Time{} // what was announced was in what it was sent before
	}
	c.mu.Unlock()
	if same {
		return nil
	}
	var changes *batch
	if has.version != view.version {
		changes = c.server.difference(c.ctx, b, has.version, view.version)
	}
	c.server.metrics.diff.Inc()
	return c.sendBatch(remotev1.Kind_DIFF, changes, has, view, false)
}

// difference returns the encoded changes from a version, or from nothing, to another one, which b is for.
func (s *Server) difference(ctx context.Context, b *batches, from, to *version) *batch {
	return b.from(from, to, func() (between sumOfChanges, ok bool) {
		if from != nil && from.class == to.class {
			if waves, triggers, ok := s.deltasBetween(from, to); ok {
				return sumOfChanges{wire.Merge(waves), triggers}, true
			} // else one is gone; or from is newer, published while the client that has it was introduced
		}
		before := &sink.Snapshot{}
		if from != nil {
			if before, ok = s.stateOf(ctx, from); !ok {
				return sumOfChanges{}, false
			}
		}
		now, ok := s.stateOf(ctx, to)
		if !ok {
			return sumOfChanges{}, false
		}
		for c := range now.ChangesSince(before) {
			between.deltas = append(between.deltas, wire.DeltaOf(c))
		}
		return between, true
	})
}

// sendBatch sends changes of the class, which other clients get as well, and what the node has of its own.
func (c *session) sendBatch(kind remotev1.Kind, changes *batch, has, view nodeView, introduces bool) error {
	if changes == nil {
		changes = &batch{}
	}
	if changes.lost {
		return tooOld()
	}
	c.sending(view)
	introduces = introduces || kind == remotev1.Kind_RESET // the client may have anything
	if !introduces {
		if f := changes.wholeFor(has, view); f != nil {
			return c.sendFrame(f)
		}
	}
	head := &remotev1.Update{Kind: kind}
	if introduces || has.class != view.class {
		head = c.opening(kind, view)
	}
	before := has.parts()
	if introduces {
		head.OwnReset, before = true, nil
	}
	w := wire.NewChunks(&c.server.zips)
	if introduces || has.own != view.own {
		w.OwnChanges(before, view.parts())
	}
	known := wire.Mark{}
	if !introduces {
		known = has.progress.changed
	}
	tail := &remotev1.Update{Sync: &remotev1.Sync{Revision: view.revision, Seen: view.progress.changed.Since(known)}}
	if introduces || !view.sameNode(has) {
		tail.Node = wire.EncodeNode(view.node)
	}
	own := w.Done()
	for i, last := 0, max(len(changes.chunks)+len(own), 1)-1; i <= last; i++ {
		f := &wire.Frame{}
		switch at := i - len(changes.chunks); {
		case at < 0:
			f = changes.chunks[i]
		case at < len(own):
			f = own[at]
		}
		if i == 0 {
			f = wire.Join(wire.Encode(head), f)
		}
		if i == last {
			f = wire.Join(f, wire.Encode(tail))
		}
		if err := c.sendFrame(f); err != nil {
			return err
		}
	}
	return nil
}

// wholeFor returns the one message that takes a client from what it has to a view, or nil if it has to be sent more
// than what changed for all of its class.
func (b *batch) wholeFor(has, view nodeView) *wire.Frame {
	if b.whole == nil || has.own != view.own || has.class != view.class || !view.sameNode(has) ||
		view.revision != view.version.revision {
		return nil
	}
	return b.whole
}

// sending notes what is about to be sent.
func (c *session) sending(view nodeView) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.busy, c.spoke = view, true, now
	if c.behind.IsZero() {
		c.behind = now
	}
}

func (c *session) sendFrame(f *wire.Frame) error {
	if err := c.stream.SendMsg(f); err != nil {
		return err
	}
	c.server.metrics.sent(f)
	return nil
}
