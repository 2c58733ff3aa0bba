package remote

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// ServerOptions configures a [Server]. Source is needed; everything else has a default.
type ServerOptions struct {
	// Source is where cluster objects come from. The server asks it for all Nodes.
	Source watch.Source
	// State is what is worked out for all nodes: Families, ServiceProxyName, NoExternalIPs, DropAnnotations,
	// EndpointDetails, HeadlessServices and ExternalNameServices. The other fields are those of a node, which its client
	// sets, and an error here.
	State localstate.Options

	// MinInterval is the least time between two revisions: what changes meanwhile is one. A change after a pause is sent
	// at once. Default 100 ms; negative: none.
	MinInterval time.Duration
	// Heartbeat is how often a client hears something, at least. It gives up a server that is silent for three times as
	// long. Default 12 s.
	Heartbeat time.Duration
	// Keep is how long a version is kept for clients that come back, so that what changed since is at hand. One that
	// comes later has its state compared. Default 10 min; negative: not at all.
	Keep time.Duration

	// MaxClients is the number of streams at a time. Default 20,000.
	MaxClients int
	// MaxClasses is the number of classes: each costs the memory of a whole state. Default 64.
	MaxClasses int
	// MaxFullStates is the number of clients that are sent a full state, or have theirs compared, at a time. Those that
	// have nearly everything do not count. Default 64.
	MaxFullStates int
	// MaxWait is how long a client waits for its turn, before it is told to come again later. Default 5 s.
	MaxWait time.Duration

	// Metrics, if given, gets the metrics while Run runs. See the package documentation for the list.
	Metrics prometheus.Registerer
}

func (o ServerOptions) withDefaults() (ServerOptions, error) {
	var errs []error
	if o.Source == nil {
		errs = append(errs, errors.New("no source"))
	}
	d := o.State.DetectLocal
	if o.State.NodeName != "" || len(o.State.NodeIPs) > 0 || o.State.MasqueradeAll || o.State.DrainingEndpoints ||
		len(d.ClusterCIDRs) > 0 || d.NodeCIDR || d.Bridge != "" || d.InterfacePrefix != "" {
		errs = append(errs, errors.New("state: NodeName, NodeIPs, MasqueradeAll, DrainingEndpoints and DetectLocal are options of clients"))
	}
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{{"MaxClients", &o.MaxClients, 20000}, {"MaxClasses", &o.MaxClasses, 64}, {"MaxFullStates", &o.MaxFullStates, 64}} {
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", n.name, *n.value))
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	for _, n := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&o.MinInterval, 100 * time.Millisecond}, {&o.Heartbeat, 12 * time.Second}, {&o.Keep, 10 * time.Minute}, {&o.MaxWait, 5 * time.Second}} {
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	if o.Heartbeat < 0 || o.MaxWait < 0 {
		errs = append(errs, errors.New("a negative Heartbeat or MaxWait"))
	}
	return o, errors.Join(errs...)
}

// Server works out the state of many nodes from one source, and sends each its own. Make one with [NewServer], run it
// with [Server.Run], and let clients in with [Server.Serve]. All methods may be called from any goroutine.
type Server struct {
	opts     ServerOptions
	instance string
	log      klog.Logger
	metrics  *serverMetrics
	changed  chan struct{} // there is something to publish
	slots    chan struct{} // one for each client that is sent a full state

	mu       sync.Mutex // guards what follows
	base     *localstate.State
	nodes    map[string]*corev1.Node
	renewed  map[string]struct{} // nodes that changed since the last revision
	classes  map[localstate.Class]*class
	sessions map[string]map[*session]struct{} // by node
	clients  int
	synced   bool
	started  bool
	revision uint64
}

// NewServer returns a server that does not run yet. The logger of ctx is kept.
func NewServer(ctx context.Context, opts ServerOptions) (*Server, error) {
	opts, err := opts.withDefaults()
	if s, ok := opts.Source.(interface{ ServiceProxyName() string }); ok {
		if own := opts.State.ServiceProxyName; own != "" && own != s.ServiceProxyName() {
			err = errors.Join(err, fmt.Errorf("state: ServiceProxyName is %q, that of the source %q", own, s.ServiceProxyName()))
		}
		opts.State.ServiceProxyName = s.ServiceProxyName()
	}
	if err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	base, err := localstate.New(ctx, opts.State)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // it does not fail
	return &Server{
		opts: opts, instance: hex.EncodeToString(id), log: klog.FromContext(ctx), metrics: newServerMetrics(),
		changed: make(chan struct{}, 1), slots: make(chan struct{}, opts.MaxFullStates),
		base: base, nodes: map[string]*corev1.Node{}, renewed: map[string]struct{}{},
		classes: map[localstate.Class]*class{}, sessions: map[string]map[*session]struct{}{},
	}, nil
}

// Run follows the source until ctx ends, and then returns nil; or until the source cannot go on. It can be called once.
// Clients are served from when everything has been listed.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.started
	s.started = true
	s.mu.Unlock()
	if again {
		return errors.New("the Server has been used: make a new one")
	}
	unregister, err := s.metrics.register(s.opts.Metrics, s)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	defer unregister()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.opts.Source.Run(ctx, watch.AllNodes, serverHandler{s}) }()
	var sourceErr error
	sourceEnded := ended
loop:
	for {
		select {
		case <-ctx.Done():
			break loop
		case err := <-sourceEnded:
			sourceEnded = nil
			if ctx.Err() == nil && err != nil {
				sourceErr = fmt.Errorf("source: %w", err)
				break loop
			}
		case <-s.changed:
			s.publish(ctx)
			if s.opts.MinInterval > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(s.opts.MinInterval):
				}
			}
		}
	}
	cancel()
	if sourceEnded != nil {
		<-ended
	}
	s.mu.Lock()
	s.synced = false // who comes now goes to another replica
	for _, sessions := range s.sessions {
		for session := range sessions {
			session.end(errServerEnds)
		}
	}
	s.mu.Unlock()
	return sourceErr
}

// serverHandler takes what the source delivers. It implements watch.Handler.
type serverHandler struct{ *Server }

func (s serverHandler) Update(changes ...watch.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	any := false
	for _, c := range changes {
		if node, ok := c.Object.(*corev1.Node); ok {
			any = s.setNode(node, c.Deleted) || any
			continue
		}
		changed, err := s.base.Apply(c.Object, c.Deleted)
		if err != nil {
			s.log.Info("Ignoring an object", "reason", err.Error())
		}
		if !changed {
			continue
		}
		any = true
		for _, class := range s.classes {
			_, _ = class.cluster.Apply(c.Object, c.Deleted) // the error is the same
		}
	}
	if any {
		s.signal()
	}
}

// setNode keeps what counts of a Node. It returns whether that is new.
func (s *Server) setNode(node *corev1.Node, deleted bool) bool {
	old := s.nodes[node.Name]
	if deleted {
		if old == nil {
			return false
		}
		delete(s.nodes, node.Name)
	} else {
		reduced := reduce(node)
		if old != nil && apiequality.Semantic.DeepEqual(old, reduced) {
			return false
		}
		s.nodes[node.Name] = reduced
	}
	if len(s.sessions[node.Name]) == 0 {
		return false
	}
	s.renewed[node.Name] = struct{}{}
	return true
}

// reduce copies what localstate reads of a Node.
func reduce(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, DeletionTimestamp: n.DeletionTimestamp.DeepCopy()}}
	if zone, ok := n.Labels[corev1.LabelTopologyZone]; ok {
		out.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	out.Spec.PodCIDR, out.Spec.PodCIDRs = n.Spec.PodCIDR, slices.Clone(n.Spec.PodCIDRs)
	for _, t := range n.Spec.Taints {
		out.Spec.Taints = append(out.Spec.Taints, corev1.Taint{Key: t.Key})
	}
	out.Status.Addresses = slices.Clone(n.Status.Addresses)
	return out
}

func (s serverHandler) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
	s.signal()
}

func (s *Server) signal() {
	select {
	case s.changed <- struct{}{}:
	default: // it will be looked at anyway
	}
}

// publish makes a revision of what is pending, and wakes those whom it concerns.
func (s *Server) publish(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		return
	}
	now := time.Now()
	s.base.Discard()
	revision := s.revision + 1
	for key, c := range s.classes {
		if len(c.sessions) == 0 && now.Sub(c.idle) > s.opts.Keep {
			delete(s.classes, key)
			continue
		}
		changed, touched := c.publish(ctx, revision, now)
		c.forget(now.Add(-s.opts.Keep))
		c.forgetNodes()
		if changed || len(touched) > 0 {
			s.revision = revision
		}
		if changed {
			for session := range c.sessions {
				session.signal()
			}
			continue
		}
		for _, node := range touched {
			for session := range s.sessions[node] {
				session.signal()
			}
		}
	}
	for name := range s.renewed {
		s.revision = revision
		for session := range s.sessions[name] {
			session.renew(s.nodes[name], revision)
			session.signal()
		}
	}
	clear(s.renewed)
}

// class returns the class with a key, making it if need be.
func (s *Server) class(ctx context.Context, key localstate.Class) (*class, error) {
	if c := s.classes[key]; c != nil {
		return c, nil
	}
	if len(s.classes) >= s.opts.MaxClasses {
		for old, c := range s.classes {
			if len(c.sessions) == 0 {
				delete(s.classes, old)
			}
		}
		if len(s.classes) >= s.opts.MaxClasses {
			return nil, fmt.Errorf("there are %d classes of nodes already (zones and options that differ)", len(s.classes))
		}
	}
	c := newClass(klog.NewContext(ctx, s.log), key, s.base)
	s.revision++
	c.publish(ctx, s.revision, time.Now())
	s.classes[key] = c
	return c, nil
}

// Synced tells whether everything has been listed, so that clients are served: a readiness probe asks it.
func (s *Server) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}
