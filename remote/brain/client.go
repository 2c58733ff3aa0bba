package brain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// common is what a Server and its clients share. It is all that a client needs of its Server.
type common struct {
	instance    string
	limits      limits
	metrics     *serverMetrics
	slots       chan struct{}      // one for each client that is being sent a full state
	slotUsers   counter[principal] // of clients that hold such a slot, or wait for one
	maxAnswer   time.Duration      // see the constant
	compressors wire.Compressors
	pace        *pace // of revisions
	liveness

	// enterClass is Server.enterClass.
	enterClass func(*client) error

	// mu guards the fields of clients, classes and the Server that say so, and is never held for long.
	mu       sync.Mutex
	advanced chan struct{} // closed when the progress of the classes changes; nil if nobody waits
}

// nextProgress returns a channel that is closed when the progress of the classes changes.
func (c *common) nextProgress() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.advanced == nil {
		c.advanced = make(chan struct{})
	}
	return c.advanced
}

// nodeView is everything that a node is sent, at one revision. It is immutable.
type nodeView struct {
	*version           // nil: nothing
	own      *ownParts // nil: none
	node     *model.Node
	revision uint64
	progress *progress
}

func (v *nodeView) ownDigest() wire.Digest {
	d := wire.NodeDigest(v.node)
	if v.own != nil {
		d = d.Add(v.own.sum)
	}
	return d
}

func (v *nodeView) digest() *remotev1.Digest { return wire.DigestMessage(v.root, v.ownDigest()) }

func (v *nodeView) same(o nodeView) bool {
	return v.version == o.version && v.own == o.own && v.sameNode(o) &&
		(v.version == nil || v.progress.nodeVIPs == o.progress.nodeVIPs)
}

func (v *nodeView) sameNode(o nodeView) bool { return v.node == o.node || v.node.Equal(o.node) }

// client is a connected client. It has no queue, only pointers to what the client was sent: the next batch is the
// difference from there to the newest state.
//
// It has one goroutine, that of gRPC, which receives messages. Updates are sent by the goroutine that finds something
// to send: the publisher, the receiver after an acknowledgement, or a temporary one. Only one sends at a time, see
// begin.
type client struct {
	server  *common
	node    string
	viewer  string // the viewer that asked for the node; "": it is the node itself
	stream  stream
	ctx     context.Context
	number  uint64 // clients are numbered in the order in which they connected
	since   time.Time
	expires time.Time // when the client's certificate expires; zero: it has none
	until   time.Time // when the stream has to end

	// Guarded by the server's mu.
	tracker *localstate.NodeTracker
	value   *model.Node // of the tracker, with the class's ServiceCIDRs; nil: not known yet
	renewed uint64      // the revision at which the tracker changed
	zone    string      // of the tracker
	class   *class
	own     *ownParts         // of the node, in the class
	foreign bool              // the class does not keep the parts of the node
	chosen  *localstate.Class // the key of class, or of the class that the client waits for

	// Of the goroutine that sends.
	introduced bool
	resume     *remotev1.Resume // the state that the client had when it connected; nil once introduced
	seen       *remotev1.Seen   // how new that state is; nil once introduced

	verify bool // the client was sent the changes since its mark, but no digest of the result yet

	senders sync.WaitGroup // the goroutine that sends

	mu          sync.Mutex               // guards what follows; taken after the server's locks
	cause       error                    // why the stream ends; nil while it does not
	closed      bool                     // no new sender may begin
	sends       bool                     // a goroutine is sending, or computing what to send
	news        bool                     // an update is pending: there is something newer than what was sent last
	busy        bool                     // what was sent last has not been acknowledged
	sent        nodeView                 // what was sent last
	has         nodeView                 // what was acknowledged last
	answer      chan<- *remotev1.Digests // receives the requested digests; nil: none were requested
	spoke       time.Time                // when something was last sent
	heartbeat   *time.Timer
	newsSeen    time.Time // when the server saw the first change that is not sent yet; zero: not known
	sentSeen    time.Time // the same, for what was sent last
	behind      time.Time // since when the client is behind; zero: it is not
	applyErr    string
	pausedUntil time.Time   // the end of its pause, in which it applies nothing; zero: it announced none
	pausesLong  bool        // the pause is at least longPause
	wake        *time.Timer // sends the pending update at the end of the pause; nil: not used yet
	wakes       bool        // wake is running
}

func (c *client) principal() principal {
	if c.viewer != "" {
		return principal{viewer: c.viewer}
	}
	return principal{node: c.node}
}

// renew updates the tracker with the new Node object, or nil if it has been deleted. The caller holds the server's mu.
func (c *client) renew(node *corev1.Node, revision uint64) {
	if node == nil {
		c.tracker.Delete()
	} else {
		c.tracker.Set(node)
	}
	c.value, c.renewed = nil, revision
}

// end ends the stream, whatever its goroutines wait for, and sends the first cause to the client.
func (c *client) end(cause error) {
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
	}
	c.mu.Unlock()
	if first {
		endStream(c.ctx, statusOf(cause))
	}
}

// newest returns the newest state of the node, and the batches that lead to it. It moves the client to the class of its
// node. ok is false while there is no state yet: the client is announced once there is.
func (c *client) newest() (view nodeView, b *batches, ok bool, err error) {
	if view, b, ok := c.sharedView(); ok {
		return view, b, true, nil
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.tracker.AwaitsNodeCIDR() {
		return nodeView{}, nil, false, nil
	}
	if err := c.server.enterClass(c); err != nil {
		return nodeView{}, nil, false, err
	}
	view, ok = c.classView()
	return view, c.class.batches, ok, nil
}

// classView returns the state of the node in the client's class, or false while the class has no state. The caller
// holds the server's mu.
func (c *client) classView() (view nodeView, ok bool) {
	current := c.class.current
	if current == nil {
		return nodeView{}, false
	}
	if c.value == nil || !slices.Equal(c.value.ServiceCIDRs, current.cidrs) {
		c.value = c.tracker.Node(current.cidrs)
	}
	view = nodeView{version: current, own: c.own, node: c.value,
		revision: max(current.revision, c.renewed), progress: c.class.progress}
	if view.own != nil {
		view.revision = max(view.revision, view.own.revision)
	}
	return view, true
}

// sharedView is newest for a client whose class has not changed; for any other, ok is false. It reads as few fields of
// a client as possible, because the memory of thousands of clients exceeds the processor's caches.
func (c *client) sharedView() (view nodeView, b *batches, ok bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.class == nil || c.value == nil || c.foreign {
		return nodeView{}, nil, false
	}
	view, ok = c.classView()
	return view, c.class.batches, ok
}

// Why the server does not serve clients.
var (
	errServerEnds = errors.New("the server ends")
	errNotListed  = errors.New(wire.NotListed)
)

// stream is the part of a gRPC stream that a client needs.
type stream interface {
	Context() context.Context
	Recv() (*remotev1.Request, error)
	SendMsg(any) error
}

// statusOf returns the status that a client is sent when its stream ends.
func statusOf(cause error) *status.Status {
	switch known, isStatus := status.FromError(cause); {
	case isStatus:
		return known
	case errors.Is(cause, errServerEnds):
		return status.New(codes.Unavailable, cause.Error())
	case errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded):
		return status.FromContextError(cause)
	}
	return status.New(codes.InvalidArgument, wire.FirstOf(cause.Error()))
}

// cancelKey is the key of the function that cancels the context of a stream, in that context.
type cancelKey struct{}

// endable makes streams that the server can end at any time. In gRPC a stream ends when its handler returns; but the
// handler waits for the next message, or for the end of the context.
func endable(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, cancelKey{}, cancel), nil
}

// endStream ends a stream that endable made, by cancelling its context, and sends the reason to the client before gRPC
// reports the cancellation. gRPC does not promise that its streams have WriteStatus: without it, streams still end, but
// clients see "canceled" instead of the reason.
func endStream(ctx context.Context, why *status.Status) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error }); ok {
		_ = s.WriteStatus(why) // the connection is gone
	}
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}
