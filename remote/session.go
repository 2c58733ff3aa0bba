package remote

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

var errServerEnds = errors.New("the server ends")

// nodeView is all that a node is sent, at one revision. It is immutable.
type nodeView struct {
	*version           // nil: nothing
	own      *ownParts // nil: none
	node     *model.Node
	revision uint64
}

func (v *nodeView) parts() map[model.ServiceName]*localstate.NodePart {
	if v.own == nil {
		return nil
	}
	return v.own.parts
}

func (v *nodeView) ownDigest() digest {
	d := nodeDigest(v.node)
	if v.own != nil {
		d = d.add(v.own.sum)
	}
	return d
}

func (v *nodeView) digest() *remotev1.Digest { return digestMessage(v.root, v.ownDigest()) }

func (v *nodeView) same(o nodeView) bool {
	return v.version == o.version && v.own == o.own && (v.node == o.node || v.node.Equal(o.node))
}

// session is one client. It holds pointers to what it has been sent, and no queue: what it is sent next is the
// difference from there to whatever is the newest by then.
type session struct {
	server *Server
	node   string
	stream stream
	ctx    context.Context
	end    context.CancelCauseFunc
	wake   chan struct{} // run has to look at what is guarded by mu
	since  time.Time

	// Guarded by the server's mu.
	tracker *localstate.NodeTracker
	value   *model.Node // of the tracker, with the class's ServiceCIDRs; nil: not known yet
	renewed uint64      // the revision at which the tracker changed
	class   *class

	mu       sync.Mutex // guards what follows
	news     bool       // there is something newer than what was sent last
	busy     bool       // what was sent last is not acknowledged
	sent     nodeView   // what was sent last
	has      nodeView   // acknowledged
	digests  *remotev1.Digests
	behind   time.Time // since when the client has not got the newest; zero if it has
	applyErr string
}

// stream is what a session needs of a gRPC stream.
type stream interface {
	Context() context.Context
	Recv() (*remotev1.Request, error)
	SendMsg(any) error
}

func (c *session) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// announce says that there is something new. A session whose client has a batch in flight is not woken: it looks when
// that is acknowledged.
func (c *session) announce() {
	c.mu.Lock()
	c.news = true
	busy := c.busy
	c.mu.Unlock()
	if !busy {
		c.signal()
	}
}

// takeNews tells whether to look for something to send, and counts it as seen.
func (c *session) takeNews() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	look := c.news && !c.busy
	if look {
		c.news = false
	}
	return look
}

// renew takes a new Node object, or nil if it is gone. The server's lock is held.
func (c *session) renew(node *corev1.Node, revision uint64) {
	if node == nil {
		c.tracker.Delete()
	} else {
		c.tracker.Set(node)
	}
	c.value, c.renewed = nil, revision
}

// watch serves a client until its stream ends.
func (s *Server) watch(stream stream, nodeOf NodeFunc) error {
	first, err := receiveHello(stream)
	if err != nil {
		return err
	}
	node, err := nodeOf(stream.Context(), first.GetNode())
	if err == nil && node == "" {
		err = errors.New("the name of the node is not known")
	}
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	options, err := decodeOptions(first.GetOptions())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	c := &session{server: s, node: node, stream: stream, ctx: ctx, end: cancel, wake: make(chan struct{}, 1),
		since: time.Now(), news: true}
	if err := s.join(c, options); err != nil {
		return err
	}
	defer s.leave(c)
	go c.receive()
	err = c.run(first.GetResume())
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errServerEnds):
		return status.Error(codes.Unavailable, cause.Error())
	case cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded):
		return status.Error(codes.InvalidArgument, cause.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// receiveHello waits for the first message.
func receiveHello(stream stream) (*remotev1.Hello, error) {
	request, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if request.GetHello() == nil {
		return nil, status.Error(codes.InvalidArgument, "the first message has to be a Hello")
	}
	return request.GetHello(), nil
}

// join lets a client in.
func (s *Server) join(c *session, o nodeOptions) error {
	tracker, err := localstate.NewNodeTracker(c.ctx, localstate.Options{
		NodeName: c.node, NodeIPs: o.nodeIPs, MasqueradeAll: o.masqueradeAll, DrainingEndpoints: o.draining,
		DetectLocal: o.detectLocal,
	})
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced:
		return status.Error(codes.Unavailable, "not everything has been listed yet")
	case s.clients >= s.opts.MaxClients:
		return status.Errorf(codes.ResourceExhausted, "there are %d clients already", s.clients)
	}
	if node := s.nodes[c.node]; node != nil {
		tracker.Set(node)
	}
	c.tracker = tracker
	if s.sessions[c.node] == nil {
		s.sessions[c.node] = map[*session]struct{}{}
	}
	s.sessions[c.node][c] = struct{}{}
	s.clients++
	return nil
}

func (s *Server) leave(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients--
	delete(s.sessions[c.node], c)
	if len(s.sessions[c.node]) == 0 {
		delete(s.sessions, c.node)
	}
	c.leaveClass()
}

func (c *session) joinClass(class *class) {
	if class != c.class {
		c.leaveClass()
		c.class, c.value = class, nil
		class.sessions[c] = struct{}{}
	}
}

func (c *session) leaveClass() {
	if c.class != nil {
		delete(c.class.sessions, c)
		c.class.idle = time.Now()
	}
	c.class = nil
}

// newest returns what the node should have now, and the batches to it; or false while that cannot be told, and the
// session is woken when it can. It moves the session to the class that its node is in.
func (c *session) newest() (view nodeView, b *batches, ok bool, err error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.tracker.AwaitsNodeCIDR() {
		return nodeView{}, nil, false, nil
	}
	for {
		key := c.tracker.Class()
		class := s.classes[key]
		if c.class != nil && c.class.key == key {
			class = c.class
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
		if err != nil {
			return nodeView{}, nil, false, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	current := c.class.current
	if current == nil {
		return nodeView{}, nil, false, nil
	}
	if c.value == nil || !slices.Equal(c.value.ServiceCIDRs, current.cidrs) {
		c.value = c.tracker.Node(current.cidrs)
	}
	view = nodeView{version: current, own: c.class.own[c.node], node: c.value,
		revision: max(current.revision, c.renewed)}
	if view.own != nil {
		view.revision = max(view.revision, view.own.revision)
	}
	return view, c.class.batches, true, nil
}

// run brings the client up to date, and keeps it so.
func (c *session) run(resume *remotev1.Resume) error {
	heartbeat := time.NewTimer(c.server.opts.Heartbeat)
	defer heartbeat.Stop()
	introduced := false
	for {
		if c.takeNews() {
			view, batches, ok, err := c.newest()
			sent := false
			switch {
			case err != nil:
			case !ok: // heartbeats tell the client that somebody is there
			case !introduced:
				err = c.introduce(view, batches, resume)
				introduced, sent = true, true
			default:
				sent, err = c.advance(view, batches)
			}
			if err != nil {
				return err
			}
			if sent {
				heartbeat.Reset(c.server.opts.Heartbeat)
			}
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-c.wake:
		case <-heartbeat.C:
			if err := c.sendHeartbeat(); err != nil {
				return err
			}
			heartbeat.Reset(c.server.opts.Heartbeat)
		}
	}
}
