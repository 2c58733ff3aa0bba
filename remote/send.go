package remote

import (
	"time"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

func (c *session) sendHeartbeat() error {
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT,
		HeartbeatMillis: uint32(c.server.opts.Heartbeat.Milliseconds())}
	c.mu.Lock()
	has := c.has
	if c.busy {
		has = nodeView{}
	}
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
func (c *session) advance(view nodeView, b *batches) (sent bool, err error) {
	c.mu.Lock()
	has := c.has
	c.mu.Unlock()
	if has.same(view) {
		return false, nil
	}
	var changes *batch
	if has.version != view.version {
		changes = c.server.difference(b, has.version, view.version)
	}
	c.server.metrics.diff.Inc()
	return true, c.send(remotev1.Kind_DIFF, changes, has, view, false)
}

// difference returns the encoded changes from a version, or from nothing, to another one, which b is for.
func (s *Server) difference(b *batches, from, to *version) *batch {
	var triggers [2][]time.Time
	if from != nil {
		s.mu.Lock()
		triggers = to.class.triggersBetween(from, to)
		s.mu.Unlock()
	}
	return b.from(from, to, triggers)
}

// send sends changes of the class, which other clients get as well, and what the node has of its own.
func (c *session) send(kind remotev1.Kind, changes *batch, has, view nodeView, introduces bool) error {
	if changes == nil {
		changes = &batch{}
	}
	c.sending(view)
	introduces = introduces || kind == remotev1.Kind_RESET // the client may have anything
	sameNode := has.node == view.node || view.node.Equal(has.node)
	if !introduces && changes.whole != nil && sameNode && has.own == view.own && has.class == view.class &&
		view.revision == view.version.revision {
		return c.sendFrame(changes.whole)
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
	if introduces || !sameNode {
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

// sending notes what is about to be sent.
func (c *session) sending(view nodeView) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.busy = view, true
	if c.behind.IsZero() {
		c.behind = time.Now()
	}
}

func (c *session) sendFrame(f *frame) error {
	if err := c.stream.SendMsg(f); err != nil {
		return err
	}
	c.server.metrics.sent(f)
	return nil
}
