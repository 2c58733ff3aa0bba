package remote

import (
	"time"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// start has the client introduced, and heartbeats sent to it, until stop.
func (c *session) start() {
	c.mu.Lock()
	c.spoke = time.Now()
	c.heartbeat = time.AfterFunc(c.server.opts.Heartbeat, c.beat)
	c.mu.Unlock()
	if c.begin() {
		go c.send()
	}
}

// stop returns when nobody sends any more. The stream has ended, so nobody can be held up in it.
func (c *session) stop() {
	c.mu.Lock()
	c.closed = true
	c.heartbeat.Stop()
	c.mu.Unlock()
	c.senders.Wait()
}

// announce says that there is something new, and tells whether it can be delivered. It cannot while the client has a
// batch in flight: who takes the acknowledgement looks for news.
func (c *session) announce() (deliverable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = true
	return !c.busy && !c.sends
}

// begin makes the caller the one who sends, if there is news, the client has nothing in flight, and nobody else sends.
// It is to call finish when it has sent.
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

// finish ends what begin began, unless there is more to send by now: then it returns true. The error, if any, is that
// nothing more can be sent, which ends the stream.
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

// takeNews tells whether to look for something to send, and counts it as seen. The session's mu is held.
func (c *session) takeNews() bool {
	look := c.news && !c.busy
	if look {
		c.news = false
	}
	return look
}

// send brings the client up to date. It is called after begin, and may take its time: the client may be slow to take
// what is sent, and its class may have to be made.
func (c *session) send() {
	for again := true; again; {
		again = c.finish(c.sendNews())
	}
}

func (c *session) sendNews() error {
	view, batches, ok, err := c.newest()
	switch {
	case err != nil || !ok: // heartbeats tell the client that somebody is there
		return err
	case !c.introduced:
		err = c.introduce(view, batches, c.resume)
		c.introduced, c.resume = true, nil
		return err
	}
	return c.advance(view, batches)
}

// deliver sends what is new. It does not take long, so that one goroutine can do it for all clients: what is more than
// one message that other clients of the class get as well is left to another goroutine. The message is not held up in
// the stream, because the client has acknowledged everything before it but heartbeats; one that has not read it
// nevertheless is what toDeliver looks out for.
func (c *session) deliver() {
	if !c.begin() {
		return
	}
	if f := c.sharedNews(); f == nil || c.finish(c.sendFrame(f)) {
		go c.send()
	}
}

// sharedNews returns the message that brings the client up to date, and notes that it is sent; or nil if it takes
// another one than other clients get, or more than one.
func (c *session) sharedNews() *frame {
	view, b, ok := c.sharedView()
	if !ok || !c.introduced {
		return nil
	}
	c.mu.Lock()
	has := c.has
	c.mu.Unlock()
	if has.version == nil || has.version == view.version {
		return nil
	}
	f := c.server.difference(b, has.version, view.version).wholeFor(has, view)
	if f != nil {
		c.server.metrics.diff.Inc()
		c.sending(view)
	}
	return f
}

// beat sends a heartbeat if nothing else has been sent for long enough.
func (c *session) beat() {
	every := c.server.opts.Heartbeat
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	silent := time.Since(c.spoke)
	due := silent >= every && !c.sends
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
		HeartbeatMillis: uint32(c.server.opts.Heartbeat.Milliseconds())}
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
		HeartbeatMillis: uint32(c.server.opts.Heartbeat.Milliseconds())}
}

func (s *Server) instanceOf(c *class) string { return s.instance + "-" + c.id }

// advance sends the difference between what the client has and the newest.
func (c *session) advance(view nodeView, b *batches) error {
	c.mu.Lock()
	has := c.has
	c.mu.Unlock()
	if has.same(view) {
		return nil
	}
	var changes *batch
	if has.version != view.version {
		changes = c.server.difference(b, has.version, view.version)
	}
	c.server.metrics.diff.Inc()
	return c.sendBatch(remotev1.Kind_DIFF, changes, has, view, false)
}

// difference returns the encoded changes from a version, or from nothing, to another one, which b is for.
func (s *Server) difference(b *batches, from, to *version) *batch {
	return b.from(from, to, func() [2][]time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return to.class.triggersBetween(from, to)
	})
}

// sendBatch sends changes of the class, which other clients get as well, and what the node has of its own.
func (c *session) sendBatch(kind remotev1.Kind, changes *batch, has, view nodeView, introduces bool) error {
	if changes == nil {
		changes = &batch{}
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
	var w chunkWriter
	if introduces || has.own != view.own {
		w.ownChanges(before, view.parts())
	}
	tail := &remotev1.Update{Sync: &remotev1.Sync{Revision: view.revision}}
	if introduces || !view.sameNode(has) {
		tail.Node = encodeNode(view.node)
	}
	own := w.done()
	for i, last := 0, max(len(changes.chunks)+len(own), 1)-1; i <= last; i++ {
		f := &frame{}
		switch at := i - len(changes.chunks); {
		case at < 0:
			f = changes.chunks[i]
		case at < len(own):
			f = own[at]
		}
		if i == 0 {
			f = f.between(marshal(head), nil)
		}
		if i == last {
			f = f.between(nil, marshal(tail))
		}
		if err := c.sendFrame(f); err != nil {
			return err
		}
	}
	return nil
}

// wholeFor returns the one message that takes a client from what it has to a view, or nil if it has to be sent more
// than what changed for all of its class.
func (b *batch) wholeFor(has, view nodeView) *frame {
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

func (c *session) sendFrame(f *frame) error {
	if err := c.stream.SendMsg(f); err != nil {
		return err
	}
	c.server.metrics.sent(f)
	return nil
}
