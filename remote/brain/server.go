package brain

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Server computes the state of many nodes from one source, and sends each node its own. Create one with [New], run it
// with [Server.Run], and accept clients with [Server.Serve]. All methods may be called from any goroutine.
type Server struct {
	common
	opts        Options
	log         klog.Logger
	changed     chan struct{}   // there is something to publish
	awaited     chan struct{}   // a class is awaited that does not exist
	connections counter[string] // by the subject of the client's certificate; "": there is none
	handshakes  chan struct{}   // of connections: see countedCreds
	classSlots  classSlots

	// work guards what is computed from the cluster: base, and the fields of each class that say so. It may be held for
	// long, so streams wait for it only to create a class. It is locked before mu.
	work sync.Mutex
	base *localstate.State
	// source is how far the source has been read, and pending whether it has delivered changes that are not published.
	source  progress
	pending bool
	seen    time.Time // when the first unpublished change arrived; zero: there is none
	vips    nodeVIPs

	// mu guards what follows. The state of a class is written with both locks held.
	nodes       map[string]*corev1.Node
	former      map[string]*corev1.Node // of deleted nodes, and of nodes that had podCIDRs before: see remember
	formerLimit int                     // the size of former at which some are forgotten
	renewed     map[string]struct{}     // nodes that changed since the last revision
	zones       map[string]int          // how many nodes are in each zone
	named       namedZones
	classes     map[localstate.Class]*group
	byNode      map[string]map[*client]struct{}
	byPrincipal map[principal]map[*client]struct{} // the same clients
	byZone      map[string]map[*client]struct{}    // the same clients
	connected   int                                // clients
	entered     uint64                             // clients so far
	synced      bool
	draining    bool
	started     bool
	revision    uint64
}

// group is a class and its clients. The Server's mu guards it.
type group struct {
	class
	clients map[*client]struct{}
	idle    time.Time // since when there are no clients
	last    principal // of the last client that left, or that the class was made for
	// followed: clients of the zone have moved here from the class without a zone, see followZones.
	followed bool
}

// New returns a server that does not run yet. The logger of ctx is kept.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Source == nil {
		return nil, errors.New("invalid options: no source")
	}
	if opts.MaxClasses < 0 {
		return nil, errors.New("invalid options: MaxClasses is negative")
	}
	cluster, err := opts.Cluster.OfSource(opts.Source)
	if err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	opts.limits = opts.limits.withDefaults()
	opts.limits.maxClasses = cmp.Or(opts.MaxClasses, opts.limits.maxClasses)
	opts.KeepBytes = cmp.Or(opts.KeepBytes, 64<<20)
	base, err := localstate.New(ctx, localstate.Options{}, cluster)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 8)
	_, _ = cryptorand.Read(id) // it does not fail
	s := &Server{
		common: common{instance: hex.EncodeToString(id), limits: opts.limits, metrics: newServerMetrics(),
			slots: make(chan struct{}, opts.limits.maxFullStates), maxAnswer: maxAnswer,
			pace:     &pace{fixed: opts.limits.minInterval, cpu: processTime, each: usualPerMessage},
			liveness: liveness{maxPublish: opts.limits.maxPublish, maxSilence: opts.limits.maxSilence}},
		opts: opts, log: klog.FromContext(ctx), changed: make(chan struct{}, 1), awaited: make(chan struct{}, 1),
		base: base, nodes: map[string]*corev1.Node{}, former: map[string]*corev1.Node{},
		renewed: map[string]struct{}{}, zones: map[string]int{},
		classes: map[localstate.Class]*group{}, byNode: map[string]map[*client]struct{}{},
		byPrincipal: map[principal]map[*client]struct{}{},
		byZone:      map[string]map[*client]struct{}{},
		named:       newNamedZones(),
		vips:        newNodeVIPs(),
		handshakes:  make(chan struct{}, maxHandshakes),
	}
	if s.deliversNodes() {
		s.source.nodeVIPs = &remotev1.NodeVIPs{}
	}
	s.common.enterClass = s.enterClass
	return s, nil
}

func (s *Server) deliversNodes() bool {
	source, ok := s.opts.Source.(interface{ DeliversNodes() bool })
	return !ok || source.DeliversNodes()
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is signalled already
	}
}
