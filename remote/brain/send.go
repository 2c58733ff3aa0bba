package brain

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

func (c *client) sendHeartbeat() error {
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT,
		HeartbeatMillis: uint32(c.server.limits.heartbeat.Milliseconds())}
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

// opening returns the first message of a stream. The instance names the class as well, because a revision means another
// state in another class.
func (c *client) opening(kind remotev1.Kind, view nodeView) *remotev1.Update {
	return &remotev1.Update{Kind: kind, InstanceID: view.history.instance,
		HeartbeatMillis: uint32(c.server.limits.heartbeat.Milliseconds())}
}

// advance sends the difference between what the client has and the newest state.
func (c *client) advance(view nodeView, b *batches) error {
	c.mu.Lock()
	has := c.has
	same := has.same(view)
	if same {
		c.behind = time.Time{} // the announced change was already in what it was sent
	}
	c.mu.Unlock()
	if same {
		return nil
	}
	var changes *batch
	if has.version != view.version {
		changes = b.difference(c.ctx, has.version, view.version)
	}
	c.server.metrics.diff.Inc()
	return c.sendBatch(remotev1.Kind_DIFF, changes, has, view, false)
}

// sharedNews returns the message that brings the client up to date, and records it as sent. It returns nil if the
// client needs more than the other clients of its class.
func (c *client) sharedNews() *wire.Frame {
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
	f := b.difference(c.ctx, has.version, view.version).wholeFor(has, view)
	if f != nil {
		c.server.metrics.diff.Inc()
		c.sending(view)
	}
	return f
}

// sendBatch sends changes of the class, which clients share, and the node's own parts.
func (c *client) sendBatch(kind remotev1.Kind, changes *batch, has, view nodeView, introduces bool) error {
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
	if introduces || has.history != view.history {
		head = c.opening(kind, view)
	}
	before := has.own
	if introduces {
		head.OwnReset, before = true, nil
	}
	w := wire.NewChunks(&c.server.compressors)
	w.Own(view.own.changesSince(before))
	known := &progress{}
	if !introduces {
		known = has.progress
	}
	tail := &remotev1.Update{Sync: &remotev1.Sync{Revision: view.revision, NodeVIPs: view.progress.nodeVIPsSince(known),
		Seen: view.progress.changed.Since(known.changed)}}
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

// wholeFor returns the one message that brings a client from has to view, or nil if the client needs anything besides
// the changes of its class.
func (b *batch) wholeFor(has, view nodeView) *wire.Frame {
	if b.whole == nil || has.own != view.own || has.history != view.history || !view.sameNode(has) ||
		view.revision != view.version.revision {
		return nil
	}
	return b.whole
}

// sending records the state that is about to be sent.
func (c *client) sending(view nodeView) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.busy, c.spoke = view, true, now
	if c.behind.IsZero() {
		c.behind = now
	}
}

func (c *client) sendFrame(f *wire.Frame) error {
	if err := c.stream.SendMsg(f); err != nil {
		return err
	}
	c.server.metrics.sentBytes.Add(float64(f.Len()))
	c.server.pace.messages.sent.Add(1)
	return nil
}
