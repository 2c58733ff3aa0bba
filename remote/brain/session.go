package brain

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

var errServerEnds = errors.New("the server ends")

// nodeView is all that a node is sent, at one revision. It is immutable.
type nodeView struct {
	*version           // nil: nothing
	own      *ownParts // nil: none
	node     *model.Node
	revision uint64
	progress *progress
}

func (v *nodeView) parts() map[model.ServiceName]*localstate.NodePart {
	if v.own == nil {
		return nil
	}
	return v.own.parts
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
	return v.version == o.version && v.own == o.own && v.sameNode(o)
}

func (v *nodeView) sameNode(o nodeView) bool { return v.node == o.node || v.node.Equal(o.node) }

// session is one client. It holds pointers to what it has been sent, and no queue: what it is sent next is the
// difference from there to whatever is the newest by then.
//
// It has one goroutine, gRPC's own, which receives what the client says. Updates are sent by whichever goroutine finds
// that there is something to send: the publisher, the receiving goroutine after an acknowledgement, or a temporary one.
// Only one sends at a time, see begin.
type session struct {
	server  *Server
	node    string
	viewer  string // who looks at the node; "": it is the node itself
	stream  stream
	ctx     context.Context
	number  uint64 // in the order in which clients have come
	since   time.Time
	expires time.Time // the client's certificate; zero: it has none
	until   time.Time // how long the stream lasts

	// Guarded by the server's mu.
	tracker *localstate.NodeTracker
	value   *model.Node // of the tracker, with the class's ServiceCIDRs; nil: not known yet
	renewed uint64      // the revision at which the tracker changed
	class   *class
	own     *ownParts         // of the node, in the class
	foreign bool              // the class keeps nothing of the node
	chosen  *localstate.Class // of class, or that of the one which the client waits for

	// Of the goroutine that sends.
	introduced bool
	resume     *remotev1.Resume // what the client has; nil after it has been introduced
	seen       *remotev1.Seen   // how new that is; nil after it has been introduced

	verify bool // the client has yet to be told the digest of what it was sent by its mark

	senders sync.WaitGroup // the goroutine that sends

	mu        sync.Mutex               // guards what follows; taken after the server's locks
	cause     error                    // why the stream ends; nil while it does not
	closed    bool                     // no new sender may begin
	sends     bool                     // a goroutine is sending, or finding out what to send
	news      bool                     // there is something newer than what was sent last
	busy      bool                     // what was sent last has not been acknowledged
	sent      nodeView                 // what was sent last
	has       nodeView                 // what was acknowledged last
	answer    chan<- *remotev1.Digests // where the digests go that the client was asked for; nil: none were
	spoke     time.Time                // when something was last sent
	heartbeat *time.Timer
	newsSeen  time.Time // when the server saw the first change in the news; zero: not known
	sentSeen  time.Time // the same of what was sent last
	behind    time.Time // since when the client lacks the newest state; zero: it has it
	applyErr  string
	rests     time.Time   // until when the client applies nothing more; zero: it did not say
	wake      *time.Timer // for the end of that, if there is news by then; nil: there has been none
	wakes     bool        // it is running
}

// stream is what a session needs of a gRPC stream.
type stream interface {
	Context() context.Context
	Recv() (*remotev1.Request, error)
	SendMsg(any) error
}

// renew takes the new Node object, or nil if it has been deleted. The caller holds the server's mu.
func (c *session) renew(node *corev1.Node, revision uint64) {
	if node == nil {
		c.tracker.Delete()
	} else {
		c.tracker.Set(node)
	}
	c.value, c.renewed = nil, revision
}

// watch serves a client until its stream ends.
func (s *Server) watch(stream stream, nodeOf NodeFunc, viewers []string) error {
	first, err := s.receiveHello(stream)
	if err != nil {
		return err
	}
	if n := len(first.GetNode()); n > wire.MaxName {
		return status.Errorf(codes.InvalidArgument, "the node's name has %d bytes, more than %d", n, wire.MaxName)
	}
	node, err := nodeOf(stream.Context(), first.GetNode())
	if err == nil && node == "" {
		err = errors.New("the name of the node is not known")
	}
	if err != nil {
		s.metrics.refused.WithLabelValues("identity").Inc()
		return status.Error(codes.PermissionDenied, err.Error())
	}
	options, err := wire.DecodeOptions(first.GetOptions())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	now := time.Now()
	c := &session{server: s, node: node, viewer: viewerOf(stream.Context(), viewers), stream: stream, ctx: stream.Context(), since: now, behind: now, news: true,
		expires: certificateEnd(stream.Context()), resume: first.GetResume(), seen: first.GetSeen(),
		until: now.Add(s.opts.limits.maxAge/2 + rand.N(s.opts.limits.maxAge))}
	if err := s.join(c, options); err != nil {
		return err
	}
	defer s.leave(c)
	c.start()
	c.end(c.receive())
	c.stop()
	return statusOf(c.cause).Err()
}

// end ends the stream, whatever its goroutines are waiting for. The client is told the first cause.
func (c *session) end(cause error) {
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

// statusOf returns what a client is told when its stream ends.
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

// receiveHello waits for the first message. Clients that do not send one are not counted: there is no limit to their
// number, so there is one to their time.
func (s *Server) receiveHello(stream stream) (*remotev1.Hello, error) {
	late := status.New(codes.DeadlineExceeded, "no Hello was received")
	timer := time.AfterFunc(s.maxAnswer, func() { endStream(stream.Context(), late) })
	request, err := stream.Recv()
	if !timer.Stop() {
		return nil, late.Err()
	}
	if err != nil {
		return nil, err
	}
	if request.GetHello() == nil {
		return nil, status.Error(codes.InvalidArgument, "the first message has to be a Hello")
	}
	return request.GetHello(), nil
}

// join lets a client in.
func (s *Server) join(c *session, o localstate.Options) error {
	o.NodeName = c.node
	tracker, err := localstate.NewNodeTracker(c.ctx, o)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced:
		s.metrics.refused.WithLabelValues("not_listed").Inc()
		return status.Error(codes.Unavailable, errNotListed.Error())
	case s.draining:
		s.metrics.refused.WithLabelValues("draining").Inc()
		return status.Error(codes.Unavailable, errServerEnds.Error())
	case s.clients >= s.opts.limits.maxClients:
		s.metrics.refused.WithLabelValues("clients").Inc()
		return status.Errorf(codes.ResourceExhausted, "there are already %d clients", s.clients)
	case len(s.parties[c.party()]) >= maxPerParty:
		s.metrics.refused.WithLabelValues("clients_of_node").Inc()
		return status.Errorf(codes.ResourceExhausted, "%v already has %d clients", c.party(), maxPerParty)
	}
	s.track(tracker, c.node)
	c.tracker = tracker
	s.enter(c)
	return nil
}

func (s *Server) leave(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(c)
	c.leaveClass()
}

// joinClass puts the session in a class in which its node is not foreign. The caller holds the server's mu.
func (c *session) joinClass(class *class) {
	if class != c.class {
		c.leaveClass()
		c.class, c.value = class, nil
		class.sessions[c] = struct{}{}
	}
	c.own, c.foreign = class.own[c.node], false
}

func (c *session) leaveClass() {
	if c.class != nil {
		delete(c.class.sessions, c)
		c.class.idle, c.class.last = time.Now(), c.party()
	}
	c.class = nil
}

// newest returns what the node should have now, and the batches that lead to it. It returns false while that is not
// known; the session is woken when it is. It moves the session to the class of its node.
func (c *session) newest() (view nodeView, b *batches, ok bool, err error) {
	if view, b, ok := c.sharedView(); ok {
		return view, b, true, nil
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.tracker.AwaitsNodeCIDR() {
		return nodeView{}, nil, false, nil
	}
	for {
		class, key := c.classNow()
		if err := s.choose(c, key); err != nil {
			s.metrics.refused.WithLabelValues("classes_of_node").Inc()
			return nodeView{}, nil, false, status.Error(codes.ResourceExhausted, err.Error())
		}
		if class != nil && !class.isForeign(c.node) {
			c.joinClass(class)
			break
		}
		s.mu.Unlock()
		if class == nil {
			err = s.makeClass(c.ctx, key)
		} else {
			s.adopt(c.ctx, class, c.node)
		}
		s.mu.Lock()
		if made := s.classes[key]; class == nil && made != nil && len(made.sessions) == 0 {
			made.last = c.party()
		}
		if err != nil {
			s.metrics.refused.WithLabelValues("classes").Inc()
			return nodeView{}, nil, false, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	view, ok = c.classView()
	return view, c.class.batches, ok, nil
}

// classNow returns the class of the node, or nil if it does not exist yet. The caller holds the server's mu.
func (c *session) classNow() (*class, localstate.Class) {
	key := c.tracker.Class()
	if c.class != nil && c.class.key == key {
		return c.class, key
	}
	return c.server.classes[key], key
}

// classView returns what the node should have according to the session's class, or false while the class has no state
// yet. The caller holds the server's mu.
func (c *session) classView() (view nodeView, ok bool) {
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

// sharedView is newest for a client whose class has not changed. For any other, ok is false: its value is not known
// either. It looks at as little of each session as it can, because the memory of thousands is in no cache.
func (c *session) sharedView() (view nodeView, b *batches, ok bool) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.class == nil || c.value == nil || c.foreign {
		return nodeView{}, nil, false
	}
	view, ok = c.classView()
	return view, c.class.batches, ok
}
