package brain

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// serverHandler handles what the source delivers. It implements watch.Handler.
type serverHandler struct{ *Server }

func (s serverHandler) Update(changes ...watch.Change) {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock() // work alone keeps others from adding a class, but not from deleting one
	classes := slices.Collect(maps.Values(s.classes))
	s.mu.Unlock()
	any := false
	for _, c := range changes {
		if node, ok := c.Object.(*corev1.Node); ok {
			any = s.setNode(node, c.Deleted) || any
			continue
		}
		if service, ok := c.Object.(*corev1.Service); ok && s.source.nodeVIPs != nil {
			s.vips.setService(service, c.Deleted)
		}
		changed, err := s.base.Apply(c.Object, c.Deleted)
		if err != nil {
			s.log.Info("Ignoring an object", "reason", err.Error())
		}
		s.source.note(c.Object, changed)
		if !changed {
			continue
		}
		any = true
		for _, class := range classes {
			class.apply(c)
		}
	}
	s.noteZones()
	before := s.source.nodeVIPs
	s.source.nodeVIPs = s.vips.message(before)
	if any = any || s.source.nodeVIPs != before; any {
		s.pending = true
		if s.seen.IsZero() {
			s.seen = time.Now()
		}
		signal(s.changed)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progressed()
}

// Heard records that the source is alive, and how far it has been read.
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
	if !s.synced { // the first list does not say when a missing object was deleted
		s.source.changed[kind] = version
	}
	*seen = version
	s.progressed()
}

// Bookmarks records that the watch of a kind is dead if it is silent.
func (s serverHandler) Bookmarks(kind metav1.Object) { s.heard.Bookmarks(kind) }

// ListIncomplete counts an incomplete streamed list.
func (s serverHandler) ListIncomplete(kind metav1.Object) { s.metrics.lists.Incomplete(kind) }

// WatchSilent counts a list that was made because the API server was silent.
func (s serverHandler) WatchSilent(kind metav1.Object) { s.metrics.lists.AfterSilence(kind) }

func (s serverHandler) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
	signal(s.changed)
}

// progressed records in the classes how far the source has been read, unless changes are still to be published: then
// publish does it. The caller holds work and mu.
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

// setNode stores the fields of a Node that localstate reads. It reports whether the node of a client changed. The
// caller holds work.
func (s *Server) setNode(node *corev1.Node, deleted bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[node.Name]
	if deleted {
		s.source.note(node, old != nil)
		if old == nil {
			return false
		}
		delete(s.nodes, node.Name)
		s.vips.setNode(old, nil)
		s.countZone(old, nil)
		s.remember(old)
	} else {
		reduced := reduce(node)
		same := old != nil && apiequality.Semantic.DeepEqual(old, reduced)
		s.source.note(node, !same)
		if same {
			return false
		}
		s.nodes[node.Name] = reduced
		s.vips.setNode(old, reduced)
		s.countZone(old, reduced)
		if hasPodCIDRs(reduced) {
			delete(s.former, node.Name)
		} else if old != nil && hasPodCIDRs(old) {
			s.remember(old)
		}
	}
	if len(s.byNode[node.Name]) == 0 {
		return false
	}
	s.renewed[node.Name] = struct{}{}
	return true
}

// remember keeps a Node that has been deleted, or that has lost its podCIDRs: what is known of a node stays (S24, S48),
// also for a client that connects again. The caller holds mu.
func (s *Server) remember(node *corev1.Node) {
	if known := s.former[node.Name]; known == nil || hasPodCIDRs(node) || !hasPodCIDRs(known) {
		s.former[node.Name] = node
	}
	if len(s.former) <= s.formerLimit {
		return
	}
	for name := range s.former {
		if len(s.former) <= maxForgotten {
			break
		}
		if name != node.Name && len(s.byNode[name]) == 0 {
			delete(s.former, name)
		}
	}
	// Those of clients stay. Each further Node would look at all of them again.
	s.formerLimit = maxForgotten
	if n := len(s.former); n > maxForgotten {
		s.formerLimit = 2 * n
	}
}

// track updates a tracker with what is known of a node. The caller holds mu.
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

// zoneOf returns the zone of a node, the last known one if its Node is deleted; "" if it has none. The caller holds mu.
func (s *Server) zoneOf(node string) string {
	known := cmp.Or(s.nodes[node], s.former[node])
	if known == nil {
		return ""
	}
	return known.Labels[corev1.LabelTopologyZone]
}

func hasPodCIDRs(n *corev1.Node) bool { return n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0 }

// reduce copies the fields of a Node that localstate reads.
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
