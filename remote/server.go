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

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Server works out the state of many nodes from one source, and sends each node its own. Create one with [NewServer],
// run it with [Server.Run], and accept clients with [Server.Serve]. All methods may be called from any goroutine.
type Server struct {
	opts     ServerOptions
	instance string
	log      klog.Logger
	metrics  *serverMetrics
	changed  chan struct{} // there is something to publish
	slots    chan struct{} // one for each client that is sent a full state

	maxAnswer time.Duration // see the constant

	// work guards what is worked out from the cluster: base, and the fields of each class that say so. It may be held
	// for long, so no stream waits for it except to have a new class made. It is locked before mu.
	work sync.Mutex
	base *localstate.State

	// mu guards what follows, and is never held for long. The state of a class is written with both locks held.
	mu       sync.Mutex
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
			err = errors.Join(err,
				fmt.Errorf("state: ServiceProxyName is %q, that of the source %q", own, s.ServiceProxyName()))
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
		changed: make(chan struct{}, 1), slots: make(chan struct{}, opts.limits.maxFullStates),
		maxAnswer: maxAnswer,
		base:      base, nodes: map[string]*corev1.Node{}, renewed: map[string]struct{}{},
		classes: map[localstate.Class]*class{}, sessions: map[string]map[*session]struct{}{},
	}, nil
}

// Run follows the source until ctx ends, and then returns nil; or until the source cannot go on. It can be called once.
// Clients are served once everything has been listed.
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
	s.synced = false // clients that come now are sent to another replica
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
	s.work.Lock()
	defer s.work.Unlock()
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
			class.apply(c)
		}
	}
	if any {
		s.signal()
	}
}

// setNode keeps the parts of a Node that localstate reads. It returns whether a client's node changed.
func (s *Server) setNode(node *corev1.Node, deleted bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// Synced reports whether everything has been listed, so that clients are served: a readiness probe asks it.
func (s *Server) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}
