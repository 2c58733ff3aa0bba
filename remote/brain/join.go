package brain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

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
		return s.metrics.refuse("identity", codes.PermissionDenied, err)
	}
	options, err := wire.DecodeOptions(first.GetOptions())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	now := time.Now()
	ctx := stream.Context()
	c := &client{server: &s.common, node: node, viewer: viewerOf(ctx, viewers), stream: stream, ctx: ctx,
		since: now, behind: now, news: true, expires: certificateEnd(ctx), resume: first.GetResume(), seen: first.GetSeen(),
		until: now.Add(s.limits.maxAge/2 + rand.N(s.limits.maxAge))}
	if err := s.join(c, options); err != nil {
		return err
	}
	defer s.leave(c)
	c.start()
	c.end(c.receive())
	c.stop()
	return statusOf(c.cause).Err()
}

// receiveHello waits for the first message. Streams without one are not counted as clients, so their time is limited
// instead of their number.
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

// join admits a client.
func (s *Server) join(c *client, o localstate.Options) error {
	o.NodeName = c.node
	tracker, err := localstate.NewNodeTracker(c.ctx, o)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "options: %v", err)
	}
	if o.DetectLocal.NodeCIDR && !s.deliversNodes() {
		return status.Error(codes.InvalidArgument,
			"options: detect local: NodeCIDR needs the Node, and the server's source delivers no Nodes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced:
		return s.metrics.refuse("not_listed", codes.Unavailable, errNotListed)
	case s.draining:
		return s.metrics.refuse("draining", codes.Unavailable, errServerEnds)
	case s.connected >= s.limits.maxClients:
		return s.metrics.refuse("clients", codes.ResourceExhausted, fmt.Errorf("there are already %d clients", s.connected))
	case len(s.byPrincipal[c.principal()]) >= maxPerPrincipal:
		return s.metrics.refuse("clients_of_node", codes.ResourceExhausted,
			fmt.Errorf("%v already has %d clients", c.principal(), maxPerPrincipal))
	}
	s.track(tracker, c.node)
	c.tracker = tracker
	insert(s.byPrincipal, c.principal(), c)
	insert(s.byNode, c.node, c)
	c.zone = tracker.Class().Zone
	insert(s.byZone, c.zone, c)
	s.connected++
	s.entered++
	c.number = s.entered
	return nil
}

func (s *Server) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remove(s.byPrincipal, c.principal(), c)
	remove(s.byNode, c.node, c)
	remove(s.byZone, c.zone, c)
	s.connected--
	s.leaveClass(c)
}

func insert[K comparable](to map[K]map[*client]struct{}, key K, c *client) {
	if to[key] == nil {
		to[key] = map[*client]struct{}{}
	}
	to[key][c] = struct{}{}
}

func remove[K comparable](from map[K]map[*client]struct{}, key K, c *client) {
	if delete(from[key], c); len(from[key]) == 0 {
		delete(from, key)
	}
}

// addClass adds a class without a state. It returns nil if the class exists already. The caller holds work.
func (s *Server) addClass(key localstate.Class) (*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.classes[key] != nil {
		return nil, nil
	}
	if err := s.makeRoom(key); err != nil {
		return nil, err
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q", fmt.Sprint(key)))
	id := hex.EncodeToString(hash[:4])
	g := &group{
		class: class{key: key, compressors: &s.compressors,
			history: history{id: id, instance: s.instance + "-" + id, mu: &s.mu, byRoot: map[wire.Digest]*version{}},
			nodeParts: nodeParts{own: map[string]*ownParts{}, owners: map[model.ServiceName][]string{},
				foreign: map[string]struct{}{}}},
		clients: map[*client]struct{}{}, idle: time.Now(),
	}
	g.belongs = func(node string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.belongs(g, node)
	}
	s.classes[key] = g
	return g, nil
}

// classesInUse returns the classes that have a state, and deletes those that were not used for limits.keep. ok is false
// until everything has been listed.
func (s *Server) classesInUse(now time.Time) (classes []*group, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.classes {
		switch {
		case c.current == nil:
		case s.unused(c) && now.Sub(c.idle) > s.limits.keep:
			delete(s.classes, key)
		default:
			classes = append(classes, c)
		}
	}
	return classes, s.synced
}

// joinClass moves a client to a class that keeps the parts of its node. The caller holds mu.
func (s *Server) joinClass(c *client, g *group) {
	if c.class != &g.class {
		s.leaveClass(c)
		c.class, c.value = &g.class, nil
		g.clients[c] = struct{}{}
	}
	c.own, c.foreign = g.own[c.node], false
}

func (s *Server) leaveClass(c *client) {
	if c.class != nil {
		g := s.classes[c.class.key]
		delete(g.clients, c)
		g.idle, g.last = time.Now(), c.principal()
	}
	c.class = nil
}

// choose assigns a client to a class, which may not be ready yet, unless its principal already uses as many classes as
// it may. The class that the client was in before does not count. Classes that the principal no longer uses are deleted
// if there are too many. The caller holds mu.
func (s *Server) choose(c *client, key localstate.Class) error {
	if c.chosen != nil && *c.chosen == key {
		return nil
	}
	return s.chooseAnew(c, key)
}

// classesOf returns the classes that the principal of a client would use if the client used another one. The caller
// holds mu.
func (s *Server) classesOf(c *client, key localstate.Class) map[localstate.Class]struct{} {
	used := map[localstate.Class]struct{}{key: {}}
	for other := range s.byPrincipal[c.principal()] {
		if other != c && other.chosen != nil {
			used[*other.chosen] = struct{}{}
		}
	}
	return used
}

// chooseAnew is choose if the class has changed. It is a function of its own because its key escapes to the heap;
// choose is called for each batch and should not allocate.
func (s *Server) chooseAnew(c *client, key localstate.Class) error {
	p, used := c.principal(), s.classesOf(c, key)
	if len(used) > maxClassesPerPrincipal {
		return fmt.Errorf("%v uses %d classes of nodes already (zones and options that differ)", p, maxClassesPerPrincipal)
	}
	c.chosen = &key
	idle := 0
	for key, class := range s.classes {
		if _, is := used[key]; is || class.last != p || !s.unused(class) {
			continue
		}
		if idle++; len(used)+idle > maxClassesPerPrincipal {
			delete(s.classes, key)
		}
	}
	return nil
}
