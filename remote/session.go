package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

func (v nodeView) parts() map[model.ServiceName]*localstate.NodePart {
	if v.own == nil {
		return nil
	}
	return v.own.parts
}

func (v nodeView) digest() *remotev1.Digest {
	return digestMessage(v.root, ownDigest(v.node, v.parts()))
}

// session is one client. It holds pointers to what it has been sent, and no queue: what it is sent next is the difference
// from there to whatever is the newest by then.
type session struct {
	server *Server
	node   string
	stream stream
	ctx    context.Context
	end    context.CancelCauseFunc
	wake   chan struct{}
	since  time.Time

	// Guarded by the server's lock.
	tracker *localstate.NodeTracker
	renewed uint64 // the revision at which the tracker changed
	class   *class

	mu       sync.Mutex // guards what follows, which receive writes
	inFlight *nodeView  // sent, and not acknowledged
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

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// renew takes a new Node object, or nil if it is gone. The server's lock is held.
func (s *session) renew(node *corev1.Node, revision uint64) {
	if node == nil {
		s.tracker.Delete()
	} else {
		s.tracker.Set(node)
	}
	s.renewed = revision
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
	c := &session{server: s, node: node, stream: stream, ctx: ctx, end: cancel, wake: make(chan struct{}, 1), since: time.Now()}
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
		NodeName: c.node, NodeIPs: o.nodeIPs, MasqueradeAll: o.masqueradeAll, DrainingEndpoints: o.draining, DetectLocal: o.detectLocal,
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

func (c *session) leaveClass() {
	if c.class != nil {
		delete(c.class.sessions, c)
		c.class.idle = time.Now()
	}
	c.class = nil
}

// newest returns what the node should have now, and false while that cannot be told. It moves the session to the class
// that its node is in.
func (c *session) newest() (view nodeView, ok bool, err error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.tracker.AwaitsNodeCIDR() {
		return nodeView{}, false, nil
	}
	if key := c.tracker.Class(); c.class == nil || c.class.key != key {
		class, err := s.class(c.ctx, key)
		if err != nil {
			return nodeView{}, false, status.Error(codes.ResourceExhausted, err.Error())
		}
		c.leaveClass()
		c.class = class
		class.sessions[c] = struct{}{}
	}
	view = nodeView{version: c.class.current, own: c.class.own[c.node], node: c.tracker.Node(c.class.current.cidrs)}
	view.revision = max(view.version.revision, c.renewed)
	if view.own != nil {
		view.revision = max(view.revision, view.own.revision)
	}
	return view, true, nil
}

// run brings the client up to date, and keeps it so.
func (c *session) run(resume *remotev1.Resume) error {
	heartbeat := time.NewTimer(c.server.opts.Heartbeat)
	defer heartbeat.Stop()
	introduced := false
	for {
		view, ok, err := c.newest()
		if err != nil {
			return err
		}
		sent := false
		switch {
		case !ok: // heartbeats tell the client that somebody is there
		case !introduced:
			err = c.introduce(view, resume)
			introduced, sent = true, true
		default:
			sent, err = c.advance(view)
		}
		if err != nil {
			return err
		}
		if sent {
			heartbeat.Reset(c.server.opts.Heartbeat)
			continue // to see what came meanwhile
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

func (c *session) sendHeartbeat() error {
	c.mu.Lock()
	beat := &remotev1.Update{Kind: remotev1.Kind_HEARTBEAT}
	if c.inFlight == nil && c.has.version != nil {
		beat.Sync = &remotev1.Sync{Revision: c.has.revision, Digest: c.has.digest()}
	}
	c.mu.Unlock()
	beat.HeartbeatMillis = uint32(c.server.opts.Heartbeat.Milliseconds())
	return c.stream.SendMsg(beat)
}

// opening is the beginning of the first message of a stream. Revisions are those of one class of one server: nodes of
// another one have another state at the same revision.
func (c *session) opening(kind remotev1.Kind, view nodeView) *remotev1.Update {
	return &remotev1.Update{Kind: kind, InstanceID: c.server.instanceOf(view.class),
		HeartbeatMillis: uint32(c.server.opts.Heartbeat.Milliseconds())}
}

func (s *Server) instanceOf(c *class) string { return s.instance + "-" + c.id }

// advance sends the difference between what the client has and the newest, unless a batch is in flight.
func (c *session) advance(view nodeView) (sent bool, err error) {
	c.mu.Lock()
	has, busy := c.has, c.inFlight != nil
	same := has.version == view.version && has.own == view.own && has.node.Equal(view.node)
	if busy {
		if !c.inFlight.same(view) && c.behind.IsZero() {
			c.behind = time.Now()
		}
	} else if same {
		c.behind = time.Time{}
	}
	c.mu.Unlock()
	if busy || same {
		return false, nil
	}
	var chunks [][]byte
	if has.version != view.version {
		chunks = c.server.difference(has.version, view.version)
	}
	c.server.metrics.batches.WithLabelValues("diff").Inc()
	return true, c.send(remotev1.Kind_DIFF, chunks, has, view, false)
}

func (v *nodeView) same(o nodeView) bool {
	return v.version == o.version && v.own == o.own && v.node.Equal(o.node)
}

// difference returns the encoded changes from a version, or from nothing, to another one.
func (s *Server) difference(from, to *version) [][]byte {
	s.mu.Lock()
	b, triggers := to.class.batches, [2][]time.Time{}
	if to != to.class.current {
		b = newBatches() // there is a newer one by now, but this is what the session is about to send
	} else if from != nil {
		triggers = to.class.triggersSince(from, to)
	}
	s.mu.Unlock()
	return b.from(from, to, triggers)
}

// send sends a batch: chunks of the class, which other clients get as well, and what the node has of its own.
func (c *session) send(kind remotev1.Kind, chunks [][]byte, has, view nodeView, introduces bool) error {
	head := &remotev1.Update{Kind: kind}
	if introduces || has.class != view.class {
		head = c.opening(kind, view)
	}
	var w chunkWriter
	before := has.parts()
	if introduces || kind == remotev1.Kind_RESET { // the client may have anything
		head.OwnReset, before = true, nil
	}
	if before == nil || has.own != view.own {
		w.ownChanges(before, view.parts())
	}
	tail := &remotev1.Update{Sync: &remotev1.Sync{Revision: view.revision}}
	if !view.node.Equal(has.node) || introduces {
		tail.Node = encodeNode(view.node)
	}
	chunks = append(chunks[:len(chunks):len(chunks)], w.done()...)
	if len(chunks) == 0 {
		chunks = [][]byte{nil}
	}
	c.mu.Lock()
	c.inFlight = &view
	if c.behind.IsZero() {
		c.behind = time.Now()
	}
	c.mu.Unlock()
	for i, chunk := range chunks {
		var f frame
		if i == 0 {
			f = append(f, marshal(head))
		}
		f = append(f, chunk)
		if i == len(chunks)-1 {
			f = append(f, marshal(tail))
		}
		if err := c.stream.SendMsg(f); err != nil {
			return err
		}
		c.server.metrics.sent(f)
	}
	return nil
}

// receive takes what the client says, until the stream ends.
func (c *session) receive() {
	for {
		request, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			c.end(context.Canceled)
			return
		}
		if err != nil {
			if status.Code(err) == codes.Internal || status.Code(err) == codes.ResourceExhausted { // what does not decode
				c.end(errors.New("malformed message: " + status.Convert(err).Message()))
			} else {
				c.end(context.Canceled)
			}
			return
		}
		if err := c.take(request); err != nil {
			c.end(err)
			return
		}
		c.signal()
	}
}

// take takes one message. An error ends the stream.
func (c *session) take(r *remotev1.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ack := r.GetAck(); {
	case ack != nil && c.inFlight != nil && ack.GetRevision() == c.inFlight.revision:
		c.has, c.inFlight = *c.inFlight, nil
		c.behind = time.Time{}
		c.applied(ack.GetError())
	case ack != nil && c.has.version != nil && ack.GetRevision() == c.has.revision: // a retry, or what did not need a Sync
		c.applied(ack.GetError())
	case ack != nil:
		return fmt.Errorf("revision %d is acknowledged, which was not sent last", ack.GetRevision())
	case r.GetDigests() != nil:
		c.digests = r.GetDigests()
	case r.GetHello() != nil:
		return errors.New("a second Hello")
	default:
		return errors.New("a message that says nothing")
	}
	return nil
}

func (c *session) applied(problem string) {
	if problem != "" && c.applyErr == "" {
		c.server.metrics.applyErrors.Inc()
	}
	c.applyErr = problem[:min(len(problem), maxErrorText)]
}

// maxErrorText bounds what is kept of a client's error.
const maxErrorText = 1000

// later is how long a client is told to wait that did not get its turn.
func later() time.Duration { return time.Second + rand.N(4*time.Second) }
