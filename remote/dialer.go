package remote

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// dialer keeps a client connected. It is used by one goroutine.
type dialer struct {
	client  *Feed
	handler kubeproxy.FeedHandler
	log     klog.Logger
	targets targetList
	synced  bool          // under the lock of the handler
	lost    time.Time     // since when there is no server
	later   time.Duration // what a server has asked for that has too much to do
	older   time.Time     // since when servers have only had older states; zero: they have not
	got     bool          // the last stream brought a batch
	forget  bool          // digests do not help: ask for everything
	asked   bool          // everything has been asked for because digests differed; they have not been equal since
	answer  time.Duration // how long a server may take to say anything at all
}

const (
	firstPause = 250 * time.Millisecond
	// firstAnswer is how long a server may take to say anything at all, from the attempt to connect: longer than it
	// lets clients wait for their turn.
	firstAnswer = 15 * time.Second
	// silentBeats is how many heartbeats may be missing.
	silentBeats = 3
	maxUpdate   = 64 << 20 // bytes of a message, and of what is compressed in it
)

// run tries one target after the other until ctx ends.
func (d *dialer) run(ctx context.Context) {
	pause := min(firstPause, d.client.maxBackoff)
	d.disconnected(time.Now())
	any := true // the first time, and so that clients spread over the servers
	for ctx.Err() == nil {
		target, err := d.pick(any)
		d.got, d.later = false, 0
		if err == nil {
			err = d.stream(ctx, target)
		}
		if ctx.Err() != nil {
			return
		}
		any = status.Code(err) == codes.Aborted
		if d.got {
			pause = min(firstPause, d.client.maxBackoff)
		}
		if d.lost.IsZero() {
			d.disconnected(time.Now())
		}
		wait := pause/2 + rand.N(pause)
		if d.later > 0 {
			wait = d.later
		} else {
			pause = min(2*pause, d.client.maxBackoff)
		}
		if !d.older.IsZero() {
			wait = min(wait, max(0, time.Until(d.older.Add(d.client.opts.FreshnessWait)))+rand.N(firstPause))
		}
		d.log.Info("Not connected to a server; applied rules stay", "target", target, "reason", err.Error(),
			"since", d.lost, "retryIn", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// disconnected notes since when there is no server; zero: there is one.
func (d *dialer) disconnected(since time.Time) {
	d.lost = since
	d.handler.Health().SetDisconnected(since)
}

// stream works with one server until something goes wrong.
func (d *dialer) stream(ctx context.Context, target string) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tooLong := time.AfterFunc(d.answer, func() { cancel(fmt.Errorf("the server has said nothing for %v", d.answer)) })
	defer tooLong.Stop()
	conn, err := d.dial(target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	codec, err := wire.NewCodec()
	if err != nil {
		return err
	}
	stream, err := remotev1.NewBrainClient(conn).Watch(ctx, grpc.ForceCodecV2(wire.ClientCodec{Codec: codec}))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	hello := d.hello()
	if err := stream.Send(&remotev1.Request{Hello: hello}); err != nil && !errors.Is(err, io.EOF) { // Recv says why
		return err
	}
	updates := make(chan wire.Message)
	go func() {
		defer close(updates)
		for {
			var u wire.Message
			if err := stream.RecvMsg(&u); err != nil {
				cancel(err)
				return
			}
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { // the goroutine ends before the stream is done with
		cancel(nil)
		for range updates {
		}
	}()
	c := &conversation{dialer: d, target: target, stream: stream, beat: d.answer / silentBeats,
		fresh: hello.Seen != nil}
	defer func() { // the server may know so few of the services that the digests were too many for it
		d.forget = d.forget || c.answered && status.Code(err) == codes.InvalidArgument
	}()
	silence := time.NewTimer(d.answer)
	defer silence.Stop()
	var look <-chan time.Time
	if d.client.opts.hasFiles() {
		every := d.client.readTargets/2 + rand.N(d.client.readTargets)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				return context.Cause(ctx)
			}
			tooLong.Stop()
			if err := c.take(ctx, u); err != nil {
				return err
			}
			silence.Reset(max(c.beat*silentBeats, time.Millisecond))
		case <-d.client.news:
			if err := c.acknowledge(); err != nil {
				return err
			}
		case <-look:
			if err := d.stillTarget(target); err != nil {
				return err
			}
		case <-silence.C:
			return fmt.Errorf("the server has been silent for %v", c.beat*silentBeats)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *dialer) dial(target string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if !strings.HasPrefix(target, unixTarget) && d.client.opts.TLS != nil {
		creds = credentials.NewTLS(d.client.opts.TLS)
	}
	target, resolved := resolution(target)
	return grpc.NewClient(target, append(resolved,
		grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxUpdate)),
		grpc.WithStaticStreamWindowSize(wire.Window), grpc.WithStaticConnWindowSize(wire.Window))...)
}

func (d *dialer) hello() *remotev1.Hello {
	o := d.client.opts.State
	hello := &remotev1.Hello{Node: o.NodeName, Options: wire.EncodeOptions(o)}
	if wait := d.client.opts.FreshnessWait; wait > 0 && (d.older.IsZero() || time.Since(d.older) < wait) {
		d.client.mu.Lock()
		hello.Seen = d.client.seen.Since(wire.Mark{})
		d.client.mu.Unlock()
	}
	if r := d.client.opts.Resume; r != nil {
		hello.Resume = &remotev1.Resume{InstanceID: r.InstanceID, Revision: r.Revision}
	}
	if d.client.partial {
		p := d.client.Position()
		hello.Resume = &remotev1.Resume{InstanceID: p.InstanceID, Revision: p.Revision}
		return hello
	}
	d.handler.Lock()
	defer d.handler.Unlock()
	if v := d.client.view; v.node != nil && !d.forget {
		at := d.client.Position()
		hello.Resume = &remotev1.Resume{InstanceID: at.InstanceID, Revision: at.Revision, Digest: v.digest()}
	}
	d.forget = false
	return hello
}

// conversation is one stream.
type conversation struct {
	*dialer
	target   string
	stream   grpc.BidiStreamingClient[remotev1.Request, remotev1.Update]
	beat     time.Duration
	instance string
	kind     remotev1.Kind
	decoder  wire.Decoder
	batch    wire.Batch // what has come of it
	begun    bool       // there is one
	complete bool       // a batch of this stream has been taken
	waits    bool       // it has been logged that none comes
	answered bool       // digests have been sent since the last batch
	fresh    bool       // the server was asked for a state that is not older
	acked    ack
	decompressor
}

// take takes a message.
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
			return errors.New("the server has not seen yet all that this node was told")
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
	default: // what a newer server says is ignored, unless it changes the state
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

// end takes a batch that is complete.
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

// apply makes a batch part of the state. first: the state is complete now, and has not been before. idle: the sink has
// it all, and its last Sync has ended.
func (c *conversation) apply(ctx context.Context, batch wire.Batch, sync *remotev1.Sync) (first, idle bool, err error) {
	c.handler.Lock()
	defer c.handler.Unlock()
	client := c.client
	if c.kind != remotev1.Kind_RESET && client.view.node == nil && client.opts.Resume == nil {
		// Taken for the whole state, it would delete all that is applied.
		return false, false, fmt.Errorf("%v of a state that this client does not have", c.kind)
	}
	if c.kind != remotev1.Kind_RESUMED {
		client.partial = c.kind == remotev1.Kind_DIFF && (client.view.node == nil || client.partial)
		if err := client.view.take(ctx, c.kind, batch); err != nil {
			return false, false, err
		}
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
	client.flushed = sync.Revision // by another server's count, it may be
	if client.applying {
		return false, false, nil
	}
	client.outcome.revision = sync.Revision
	return false, true, nil
}

// takeSeen takes how new a batch is. The caller holds the client's mu.
func (c *conversation) takeSeen(news wire.Mark) {
	before := c.client.seen
	switch {
	case c.kind == remotev1.Kind_RESUMED || !c.complete && c.fresh && news != wire.Mark{}:
		// The server has the same state, or vouches for what it was asked.
		c.client.seen = before.Newest(news)
		return
	case c.complete:
		c.client.seen = before.With(news)
	default:
		c.client.seen = news
	}
	if c.client.seen.Behind(before) {
		c.log.Error(nil, "The state may have gone back: this server has not seen all that the node was told before, and "+
			"no other one was found in time", "server", c.target)
		c.handler.Health().SetWentBack(time.Now())
	}
}

// acknowledge tells the server how far the sink is, if it does not know.
func (c *conversation) acknowledge() error {
	c.client.mu.Lock()
	now, newest := c.client.outcome, c.client.revision
	c.client.mu.Unlock()
	if !c.complete || now.revision != newest || now == c.acked {
		return nil
	}
	c.acked = now
	err := c.stream.Send(&remotev1.Request{Ack: &remotev1.Ack{Revision: now.revision, Error: now.problem}})
	if errors.Is(err, io.EOF) {
		return nil // Recv says why
	}
	return err
}

// compare looks whether the server means that the client has what it has.
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
		c.log.Error(nil, "All of the state has been sent again, and still is not what the server says. Digests are not"+
			" compared any more", "server", c.target)
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
		return nil // Recv says why
	}
	return err
}

// decompressor is used again and again, because what it needs is large.
type decompressor struct {
	unzip    *gzip.Reader
	unzipped bytes.Buffer
}

// decompress returns what is compressed, until it is called again.
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
		return nil, fmt.Errorf("more than %d bytes are compressed in a message", maxUpdate)
	}
	return c.unzipped.Bytes(), nil
}
