package remote

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// conversation is one stream.
type conversation struct {
	*dialer
	target   string
	stream   grpc.BidiStreamingClient[remotev1.Request, remotev1.Update]
	beat     time.Duration
	instance string
	kind     remotev1.Kind
	decoder  wire.Decoder
	batch    wire.Batch // what has been received of the current one
	begun    bool       // a batch is being received
	complete bool       // a batch of this stream has been applied
	waits    bool       // it has been logged that the server has no state yet
	answered bool       // digests have been sent since the last batch
	fresh    bool       // the server was asked for a state that is at least as new as the client's
	acked    ack
	nodeVIPs []netip.Addr // as received last, with the node's own
	tells    bool         // the server sends NodeVIPs
	decompressor
}

// take handles a message.
func (c *conversation) take(ctx context.Context, message wire.Message) error {
	u, err := c.decoder.Update(message, c.decompress, &c.batch)
	if err != nil {
		return fmt.Errorf("malformed message: %w", err)
	}
	if u.HeartbeatMillis > 0 {
		c.beat = time.Duration(u.HeartbeatMillis) * time.Millisecond
	}
	if u.InstanceID != "" {
		c.instance = u.InstanceID
	}
	switch u.Kind {
	case remotev1.Kind_HEARTBEAT:
		if !c.complete && !c.waits {
			c.waits = true
			c.log.Info("Connected to a server, which has no state for this node yet: does its Node have the podCIDRs that"+
				" are needed to detect local traffic?", "server", c.target)
		}
		if c.complete {
			c.client.confirm()
		}
		return c.compare(u.Sync)
	case remotev1.Kind_LATER:
		if u.Behind {
			if c.older.IsZero() {
				c.older = time.Now()
			}
			return errors.New("the server's state is older than this node's")
		}
		c.later = min(time.Duration(u.RetryAfterMillis)*time.Millisecond, 5*time.Minute)
		return errors.New("the server is overloaded")
	case remotev1.Kind_COMPARE:
		return c.answer(u.GetCompare().GetBuckets())
	case remotev1.Kind_KIND_UNKNOWN:
		if !c.begun {
			return errors.New("malformed message: a batch without a kind")
		}
	case remotev1.Kind_DIFF, remotev1.Kind_RESET, remotev1.Kind_RESUMED:
		if c.begun {
			return errors.New("malformed message: a batch begins within another one")
		}
		c.kind, c.begun = u.Kind, true
	default: // unknown messages of newer servers are ignored, unless they change the state
		if c.begun || u.Sync != nil || c.batch.Any() {
			return fmt.Errorf("a batch of an unknown kind: %v", u.Kind)
		}
		return nil
	}
	if u.Sync == nil {
		return nil
	}
	return c.end(ctx, u.Sync)
}

// end handles the end of a batch.
func (c *conversation) end(ctx context.Context, sync *remotev1.Sync) error {
	batch, err := c.batch, c.decoder.Err()
	if err != nil {
		return fmt.Errorf("malformed message: %w", err)
	}
	c.batch, c.begun, c.decoder, c.decompressor = wire.Batch{}, false, wire.Decoder{}, decompressor{}
	first, idle, err := c.apply(ctx, batch, sync)
	if err != nil {
		return fmt.Errorf("malformed message: %w", err)
	}
	c.complete, c.got, c.answered, c.older = true, true, false, time.Time{}
	if !c.lost.IsZero() {
		c.log.Info("Connected to a server", "instance", c.instance, "kind", c.kind.String(), "revision", sync.Revision)
		c.disconnected(time.Time{})
	}
	if first {
		c.handler.Synced()
	}
	if idle {
		return c.acknowledge()
	}
	return nil
}

// apply applies a batch to the state. first: the state has just become complete. idle: the sink has all of it, and its
// last Sync has ended.
func (c *conversation) apply(ctx context.Context, batch wire.Batch, sync *remotev1.Sync) (first, idle bool, err error) {
	c.handler.Lock()
	defer c.handler.Unlock()
	client := c.client
	resumes := c.kind == remotev1.Kind_DIFF && client.opts.Resume != nil
	if c.kind != remotev1.Kind_RESET && client.view.node == nil && !resumes {
		// Taken as the whole state, it would delete everything that is applied.
		return false, false, fmt.Errorf("%v of a state that this client does not have", c.kind)
	}
	if c.kind != remotev1.Kind_RESUMED {
		client.partial = c.kind == remotev1.Kind_DIFF && (client.view.node == nil || client.partial)
		if err := client.view.take(ctx, c.kind, batch); err != nil {
			return false, false, err
		}
	}
	if err := c.takeNodeVIPs(sync.NodeVIPs, batch.Node != nil); err != nil {
		return false, false, err
	}
	first, c.synced = !c.synced, true
	c.handler.Health().SetRestored(time.Time{})
	client.mu.Lock()
	defer client.mu.Unlock()
	client.instance, client.revision = c.instance, sync.Revision
	c.takeSeen(wire.MarkOf(sync.Seen))
	client.confirmed, client.restored = time.Now(), time.Time{}
	if first || client.view.pending.Any() {
		return first, false, nil
	}
	client.flushed = sync.Revision // the old revision may be another server's
	if client.applying {
		return false, false, nil
	}
	client.outcome.revision = sync.Revision
	return false, true, nil
}

// takeNodeVIPs passes on what the server says, after the node has been taken; renewed: its addresses, which are left
// out, may have changed. Without anything in its first batch, the server is older, or does not know the Nodes.
func (c *conversation) takeNodeVIPs(m *remotev1.NodeVIPs, renewed bool) error {
	tell := c.client.opts.NodeVIPs
	if tell == nil || m == nil && c.complete && !renewed {
		return nil
	}
	if m != nil {
		list, err := wire.DecodeNodeVIPs(m)
		if err != nil {
			return err
		}
		c.nodeVIPs, c.tells = list, true
	}
	own := c.client.view.node.IPs
	tell(slices.DeleteFunc(slices.Clone(c.nodeVIPs), func(a netip.Addr) bool { return slices.Contains(own, a) }), c.tells)
	return nil
}

// takeSeen records how new a batch is. The caller holds the client's mu.
func (c *conversation) takeSeen(mark wire.Mark) {
	before := c.client.seen
	switch {
	case c.kind == remotev1.Kind_RESUMED || !c.complete && c.fresh && mark != wire.Mark{}:
		// The server has the same state, or one at least as new as it was asked for.
		c.client.seen = before.Newest(mark)
		if !c.fresh { // it was not asked how much it has seen of the Nodes, some of which is not in the state
			c.client.seen[wire.Nodes] = mark[wire.Nodes]
		}
		return
	case c.complete:
		c.client.seen = before.With(mark)
	default:
		c.client.seen = mark
	}
	if c.client.seen.Behind(before) {
		c.log.Error(nil, "The state may be older than the one before: this server lags behind what the node was told, and "+
			"no other one was found in time", "server", c.target)
		c.handler.Health().SetWentBack(time.Now())
	}
}

// acknowledge tells the server what the sink has applied, unless it already knows.
func (c *conversation) acknowledge() error {
	c.client.mu.Lock()
	now, newest, pausedUntil := c.client.outcome, c.client.revision, c.client.pausedUntil
	c.client.mu.Unlock()
	if !c.complete || now.revision != newest || now == c.acked {
		return nil
	}
	c.acked = now
	err := c.stream.Send(&remotev1.Request{Ack: &remotev1.Ack{Revision: now.revision, Error: now.problem,
		PauseMillis: uint32(min(max(0, time.Until(pausedUntil)), time.Hour).Milliseconds())}})
	if errors.Is(err, io.EOF) {
		return nil // Recv returns the reason
	}
	return err
}

// compare checks that the server's digest equals the client's.
func (c *conversation) compare(sync *remotev1.Sync) error {
	theirs := sync.GetDigest()
	if theirs.GetVersion() != wire.DigestVersion || !c.complete || c.begun || c.client.partial {
		return nil
	}
	c.handler.Lock()
	defer c.handler.Unlock()
	ours, revision := c.client.view.digest(), c.client.Position().Revision
	switch {
	case ours == nil || revision != sync.Revision:
		return nil
	case bytes.Equal(ours.Shared, theirs.Shared) && bytes.Equal(ours.Own, theirs.Own):
		c.asked = false
		return nil
	case c.asked && c.kind == remotev1.Kind_RESET:
		c.log.Error(nil, "The full state still differs from the server's digest; digests are no longer compared",
			"server", c.target)
		c.client.view.incomparable = true
		return nil
	}
	c.forget, c.asked = true, true
	return errors.New("the state differs from the server's: requesting all of it")
}

// answer sends the digests that the server asks for.
func (c *conversation) answer(wanted []uint32) error {
	out := &remotev1.Digests{}
	c.handler.Lock()
	if len(wanted) == 0 {
		out.Buckets = c.client.view.shared.digests().Bytes()
	} else {
		for name, d := range wire.ServiceDigests(c.client.view.shared.snapshot, wanted) {
			out.Services = append(out.Services,
				&remotev1.ServiceDigest{Namespace: name.Namespace, Name: name.Name, Digest: d.Bytes()})
		}
	}
	c.handler.Unlock()
	c.answered = true
	err := c.stream.Send(&remotev1.Request{Digests: out})
	if errors.Is(err, io.EOF) {
		return nil // Recv returns the reason
	}
	return err
}

// decompressor is reused, because its buffers are large.
type decompressor struct {
	unzip    *gzip.Reader
	unzipped bytes.Buffer
}

// decompress returns the decompressed bytes, which are valid until it is called again.
func (c *decompressor) decompress(b []byte) ([]byte, error) {
	if c.unzip == nil {
		c.unzip = &gzip.Reader{}
	}
	if err := c.unzip.Reset(bytes.NewReader(b)); err != nil {
		return nil, err
	}
	c.unzipped.Reset()
	if _, err := c.unzipped.ReadFrom(io.LimitReader(c.unzip, maxUpdate+1)); err != nil {
		return nil, err
	}
	if c.unzipped.Len() > maxUpdate {
		return nil, fmt.Errorf("a message decompresses to more than %d bytes", maxUpdate)
	}
	return c.unzipped.Bytes(), nil
}
