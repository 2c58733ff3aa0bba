package brain

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// progress says how much of the cluster's history the states of the classes contain. It is immutable.
//
// Clients are sent changed; a server compares that with its own seen. So a server that knows that nothing has changed
// is as new as one that sent the last change.
type progress struct {
	seen    wire.Mark // up to where the source has been read
	changed wire.Mark // the newest changes that made a difference

	nodeVIPs *remotev1.NodeVIPs // never changed; nil: the source delivers no Nodes
}

// nodeVIPsSince returns the NodeVIPs for a client that has those of before; nil if they are the same.
func (p *progress) nodeVIPsSince(before *progress) *remotev1.NodeVIPs {
	if before.nodeVIPs == p.nodeVIPs {
		return nil
	}
	return p.nodeVIPs
}

// versionOf returns the kind and the resourceVersion of an object; ok is false if the version cannot be compared.
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

// note records the resourceVersion of an object that the source has delivered, and whether it changed anything.
func (p *progress) note(object metav1.Object, changed bool) {
	kind, version, ok := versionOf(object, object.GetResourceVersion())
	if !ok {
		return
	}
	p.seen[kind] = max(p.seen[kind], version)
	if changed {
		p.changed[kind] = max(p.changed[kind], version)
	}
}

// liveness knows whether the server is up to date.
type liveness struct {
	maxPublish, maxSilence time.Duration             // see limits
	publishing             atomic.Pointer[time.Time] // when the current revision began; nil: none is in progress
	heard                  watchhealth.Tracker       // when the source last reported something
}

// fresh returns why the server may be out of date; then Ready fails, and clients get no heartbeats. It takes no lock
// that a server which hangs may hold.
func (l *liveness) fresh() error {
	if age := l.publishingFor(); age > l.maxPublish {
		return fmt.Errorf("it has been publishing a revision for %v", age)
	}
	if kind, age, quiet := l.silence(); age > l.maxSilence+quiet {
		return fmt.Errorf("the API server has said nothing of kind %s for %v", kind, age)
	}
	return nil
}

// silence returns the kind of object that the source has been silent about for longest, and for how long; 0: not known.
// quiet is how much longer it may be silent, because it sends no bookmarks.
func (l *liveness) silence() (kind string, age, quiet time.Duration) {
	kind, at, quiet := l.heard.Oldest()
	if at.IsZero() {
		return kind, 0, 0
	}
	return kind, time.Since(at), quiet
}

// publishingFor returns how long the current revision has been in progress; 0: none is.
func (l *liveness) publishingFor() time.Duration {
	if at := l.publishing.Load(); at != nil {
		return time.Since(*at)
	}
	return 0
}
