package brain

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
)

// progress says how much of the cluster's history is in the states of the classes. It is immutable.
//
// A client is told changed, and a server compares that with its own seen. So a server that has heard that nothing has
// changed is as good as one that has told its clients the last change.
type progress struct {
	seen    wire.Mark // how far the source has got
	changed wire.Mark // the newest changes that made a difference
}

// versionOf returns the kind and the resourceVersion of an object; ok is false if they cannot be compared with others.
func versionOf(object metav1.Object, resourceVersion string) (kind int, version uint64, ok bool) {
	switch object.(type) {
	case *corev1.Service:
		kind = wire.Services
	case *discoveryv1.EndpointSlice:
		kind = wire.EndpointSlices
	case *corev1.Node:
		kind = wire.Nodes
	case *networkingv1.ServiceCIDR:
		kind = wire.ServiceCIDRs
	default:
		return 0, 0, false
	}
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	return kind, version, err == nil && version > 0 && resourceVersion[0] != '0'
}

// note takes the resourceVersion of an object that the source has delivered. The caller holds work.
func (s *Server) note(object metav1.Object, changed bool) {
	kind, version, ok := versionOf(object, object.GetResourceVersion())
	if !ok {
		return
	}
	s.source.seen[kind] = max(s.source.seen[kind], version)
	if changed {
		s.source.changed[kind] = max(s.source.changed[kind], version)
	}
}

// Heard takes note that the source is alive, and how far it has got.
func (s serverHandler) Heard(object metav1.Object, resourceVersion string) {
	s.heard.Heard(object, resourceVersion, time.Now())
	kind, version, ok := versionOf(object, resourceVersion)
	if !ok {
		return
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := &s.source.seen[kind]
	if version < *seen {
		s.log.Info("The API server's resourceVersions have gone back: has it been restored?", "from", *seen,
			"to", version)
		s.source.changed[kind] = version
	}
	if !s.synced { // what a first list lacks has gone since, nobody knows when
		s.source.changed[kind] = version
	}
	*seen = version
	s.progressed()
}

// Bookmarks takes note that silence of a kind means that its watch is dead.
func (s serverHandler) Bookmarks(kind metav1.Object) { s.heard.Bookmarks(kind) }

// progressed tells the classes how far the source has got, unless changes have yet to be published; publish does it
// then. The caller holds work and mu.
func (s *Server) progressed() *progress {
	p := s.source
	if s.pending {
		return &p
	}
	for _, c := range s.classes {
		if c.current != nil {
			c.progress = &p
		}
	}
	if s.advanced != nil {
		close(s.advanced)
		s.advanced = nil
	}
	return &p
}

// nextProgress returns what is closed when the classes know more of the cluster.
func (s *Server) nextProgress() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.advanced == nil {
		s.advanced = make(chan struct{})
	}
	return s.advanced
}
