package brain

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/freshness"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Server works out the state of many nodes from one source, and sends each node its own. Create one with [New],
// run it with [Server.Run], and accept clients with [Server.Serve]. All methods may be called from any goroutine.
type Server struct {
	opts     Options
	instance string
	log      klog.Logger
	metrics  *serverMetrics
	changed  chan struct{} // there is something to publish
	slots    chan struct{} // one for each client that is sent a full state

	maxAnswer time.Duration // see the constant
	zips      wire.Compressors

	publishing since             // the revision that is being worked out has begun
	heard      freshness.Tracker // what the source has said

	// work guards what is worked out from the cluster: base, and the fields of each class that say so. It may be held
	// for long, so no stream waits for it except to have a new class made. It is locked before mu.
	work sync.Mutex
	base *localstate.State
	// source is how far the source has got, and pending is whether it has delivered what the classes do not have yet.
	source  progress
	pending bool
	seen    time.Time // when the first change came that is not in a revision yet; zero: there is none

	// mu guards what follows, and is never held for long. The state of a class is written with both locks held.
	mu          sync.Mutex
	nodes       map[string]*corev1.Node
	former      map[string]*corev1.Node // of nodes that are gone, or that had podCIDRs: see remember
	renewed     map[string]struct{}     // nodes that changed since the last revision
	classes     map[localstate.Class]*class
	sessions    map[string]map[*session]struct{} // by node
	parties     map[party]map[*session]struct{}  // the same
	clients     int
	entered     uint64         // clients so far
	turns       map[party]int  // of those that are sent a full state, or wait for that
	connections map[string]int // by the subject of the client's certificate; "": there is none
	synced      bool
	draining    bool
	started     bool
	revision    uint64
	advanced    chan struct{} // closed when the classes' progress changes; nil if nobody waits for that
}

// New returns a server that does not run yet. The logger of ctx is kept.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Source == nil {
		return nil, errors.New("invalid options: no source")
	}
	cluster, err := opts.Cluster.OfSource(opts.Source)
	if err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	opts.limits = opts.limits.withDefaults()
	opts.KeepBytes = cmp.Or(opts.KeepBytes, 64<<20)
	base, err := localstate.New(ctx, localstate.Options{}, cluster)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 8)
	_, _ = cryptorand.Read(id) // it does not fail
	return &Server{
		opts: opts, instance: hex.EncodeToString(id), log: klog.FromContext(ctx), metrics: newServerMetrics(),
		changed: make(chan struct{}, 1), slots: make(chan struct{}, opts.limits.maxFullStates),
		maxAnswer: maxAnswer,
		base:      base, nodes: map[string]*corev1.Node{}, former: map[string]*corev1.Node{},
		renewed: map[string]struct{}{},
		classes: map[localstate.Class]*class{}, sessions: map[string]map[*session]struct{}{},
		parties: map[party]map[*session]struct{}{}, turns: map[party]int{}, connections: map[string]int{},
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
		return errors.New("a Server can be used only once")
	}
	unregister, err := s.metrics.register(s.opts.Metrics, s)
	if err != nil {
		return err
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
			begin := time.Now()
			s.publishing.set(begin)
			s.publish(ctx)
			s.publishing.clear()
			s.metrics.publish.Observe(time.Since(begin).Seconds())
			if s.opts.limits.minInterval > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(s.opts.limits.minInterval):
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
		s.note(c.Object, changed)
		if !changed {
			continue
		}
		any = true
		for _, class := range s.classes {
			class.apply(c)
		}
	}
	if any {
		s.pending = true
		if s.seen.IsZero() {
			s.seen = time.Now()
		}
		s.signal()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progressed()
}

// setNode keeps the parts of a Node that localstate reads. It returns whether a client's node changed. The caller holds
// work.
func (s *Server) setNode(node *corev1.Node, deleted bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[node.Name]
	if deleted {
		s.note(node, old != nil)
		if old == nil {
			return false
		}
		delete(s.nodes, node.Name)
		s.remember(old)
	} else {
		reduced := reduce(node)
		same := old != nil && apiequality.Semantic.DeepEqual(old, reduced)
		s.note(node, !same)
		if same {
			return false
		}
		s.nodes[node.Name] = reduced
		if hasPodCIDRs(reduced) {
			delete(s.former, node.Name)
		} else if old != nil && hasPodCIDRs(old) {
			s.remember(old)
		}
	}
	if len(s.sessions[node.Name]) == 0 {
		return false
	}
	s.renewed[node.Name] = struct{}{}
	return true
}

// remember keeps a Node that is there no more, or no more like this: what was known of a node stays (S24, S48), also
// for a client that connects again. The caller holds mu.
func (s *Server) remember(node *corev1.Node) {
	if known := s.former[node.Name]; known == nil || hasPodCIDRs(node) || !hasPodCIDRs(known) {
		s.former[node.Name] = node
	}
	for name := range s.former {
		if len(s.former) <= maxForgotten {
			break
		}
		if name != node.Name && len(s.sessions[name]) == 0 {
			delete(s.former, name)
		}
	}
}

// track tells a tracker what is known of its node. The caller holds mu.
func (s *Server) track(t *localstate.NodeTracker, name string) {
	now, former := s.nodes[name], s.former[name]
	if former != nil {
		t.Set(former)
	}
	if now != nil {
		t.Set(now)
	} else if former != nil {
		t.Delete()
	}
}

func hasPodCIDRs(n *corev1.Node) bool { return n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0 }

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

// Drain sends the clients away from a server that is about to end: one after the other, in random order and spread over
// a time, they are told to connect to another server, which then has them one by one, too. They resume there. Until it
// is told, a client is served as before; new ones are refused, and Ready says so. Drain returns when all have been
// told, or when ctx ends. End the context of Run and Serve then: without Drain, that sends all clients away at once.
func (s *Server) Drain(ctx context.Context, over time.Duration) {
	s.mu.Lock()
	s.draining = true
	all := make([]*session, 0, s.clients)
	for _, sessions := range s.sessions {
		all = slices.AppendSeq(all, maps.Keys(sessions))
	}
	s.mu.Unlock()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	begin := time.Now()
	for i, session := range all {
		if wait := over*time.Duration(i)/time.Duration(len(all)) - time.Since(begin); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		session.end(errServerEnds)
	}
}

// Ready returns why clients should not be sent here, for a readiness probe: not everything has been listed, the server
// is about to end, or it is not up to date, because it hangs or the API server says nothing. nil: there is no reason.
func (s *Server) Ready() error {
	s.mu.Lock()
	synced, draining := s.synced, s.draining
	s.mu.Unlock()
	switch {
	case !synced:
		return errNotListed
	case draining:
		return errServerEnds
	}
	return s.fresh()
}

var errNotListed = errors.New(wire.NotListed)
