package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/testdial"
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
	lost    time.Time     // since when no server is connected; zero: one is
	later   time.Duration // the pause that an overloaded server has asked for
	older   time.Time     // since when all servers have had older states; zero: not all do
	got     bool          // the last stream delivered a batch
	forget  bool          // ask for everything, because digests do not help
	asked   bool          // everything has been asked for because digests differed; they have not been equal since
	answer  time.Duration // how long a server may take to send anything at all
}

const (
	firstPause = 250 * time.Millisecond
	// firstAnswer is how long a server may take to send anything at all, from the attempt to connect. It is longer than
	// a server lets clients wait for a slot.
	firstAnswer = 15 * time.Second
	// silentBeats is how many heartbeats may be missing.
	silentBeats = 3
	maxUpdate   = 64 << 20 // bytes of a message, and of what is compressed in it
)

// run tries one target after the other until ctx ends.
func (d *dialer) run(ctx context.Context) {
	pause := min(firstPause, d.client.maxBackoff)
	d.disconnected(time.Now())
	any := true // at first, and where clients are to spread over the servers
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
		var wait time.Duration
		wait, pause = d.nextPause(pause)
		if s := status.Convert(err); s.Code() == codes.Unavailable && s.Message() == wire.NotListed {
			d.log.Info("The server is reachable, but has not listed the cluster yet; applied rules stay in place",
				"target", target,
				"since", d.lost, "retryIn", wait)
		} else {
			d.log.Info("Not connected to a server; applied rules stay in place", "target", target, "reason", err.Error(),
				"since", d.lost, "retryIn", wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// nextPause returns how long to wait before the next attempt, and the pause for the one after it. A server that is
// overloaded says how long. At the end of the freshness wait there is an attempt, since any server will do from then
// on; if that fails, the pauses grow again.
func (d *dialer) nextPause(pause time.Duration) (wait, next time.Duration) {
	if d.later > 0 {
		return d.later, pause
	}
	wait = pause/2 + rand.N(pause)
	left := time.Until(d.older.Add(d.client.opts.FreshnessWait))
	if !d.older.IsZero() && 0 < left && left < wait {
		return min(wait, left+rand.N(firstPause)), min(firstPause, d.client.maxBackoff)
	}
	return wait, min(2*pause, d.client.maxBackoff)
}

// disconnected records since when no server is connected; the zero time means that one is.
func (d *dialer) disconnected(since time.Time) {
	d.lost = since
	d.handler.Health().SetDisconnected(since)
}

// stream serves one connection until it fails.
func (d *dialer) stream(ctx context.Context, target string) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tooLong := time.AfterFunc(d.answer, func() { cancel(fmt.Errorf("the server has not answered for %v", d.answer)) })
	defer tooLong.Stop()
	conn, err := d.dial(ctx, target)
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
	if err := stream.Send(&remotev1.Request{Hello: hello}); err != nil && !errors.Is(err, io.EOF) { // Recv returns why
		return err
	}
	updates := make(chan wire.Message)
	go receive(ctx, cancel, stream, updates)
	defer func() { // the goroutine has to end before the stream is released
		cancel(nil)
		for range updates {
		}
	}()
	c := &conversation{dialer: d, target: target, stream: stream, beat: d.answer / silentBeats,
		fresh: hello.Seen != nil}
	defer func() { // the server may know so few of the services that the digests exceeded its limit
		d.forget = d.forget || c.answered && status.Code(err) == codes.InvalidArgument
	}()
	silence := time.NewTimer(d.answer)
	defer silence.Stop()
	check, stop := d.listChecks()
	defer stop()
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
		case <-d.client.ackDue:
			if err := c.acknowledge(); err != nil {
				return err
			}
		case <-check:
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

// receive passes on the messages of a server until the stream or ctx ends.
func receive(ctx context.Context, cancel context.CancelCauseFunc,
	stream grpc.BidiStreamingClient[remotev1.Request, remotev1.Update], updates chan<- wire.Message) {
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
}

// listChecks returns a channel that fires when it is time to check whether the target is still listed, and a function
// that stops it. Only targets in files can change.
func (d *dialer) listChecks() (<-chan time.Time, func()) {
	if !d.client.opts.hasFiles() {
		return nil, func() {}
	}
	ticker := time.NewTicker(d.client.readTargets/2 + rand.N(d.client.readTargets))
	return ticker.C, ticker.Stop
}

func (d *dialer) dial(ctx context.Context, target string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if opts := &d.client.opts; !strings.HasPrefix(target, unixTarget) && opts.hasTLS() {
		config := opts.TLS
		if opts.GetTLS != nil {
			var err error
			if config, err = opts.GetTLS(); err != nil {
				return nil, err
			}
		}
		creds = credentials.NewTLS(config)
	}
	isUnix := strings.HasPrefix(target, unixTarget)
	target, resolved := resolution(target)
	if dial := d.client.opts.Dial; dial != nil && !isUnix {
		resolved = append(resolved, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial(ctx, "tcp", address)
		}))
	}
	if inMemory := testdial.From(ctx); inMemory != nil {
		resolved = append(resolved, grpc.WithContextDialer(inMemory))
	}
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
