package brain

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// errTooManyClasses is why a class is not created.
var errTooManyClasses = errors.New(
	"there are already as many classes of nodes as there may be (zones and options that differ)")

// mayAddClass reports whether the limit allows another class. Each takes the memory of a whole state. A few beyond the
// limit are reserved for classes without a zone, because they serve the nodes for whose zone there can be no class, and
// those in whose zone no hint counts; and at least half of the limit is for zones of Nodes, because a client may name
// any other zone. Classes without clients do not count, because they can be deleted. The caller holds mu.
func (s *Server) mayAddClass(key localstate.Class) bool {
	used, without, invented := 0, 0, 0
	for other, class := range s.classes {
		if s.unused(class) {
			continue
		}
		used++
		if other.Zone == "" {
			without++
		}
		if !s.isOfNodes(other.Zone) {
			invented++
		}
	}
	most := s.limits.maxClasses
	if key.Zone == "" {
		return used < most+classesWithoutZone
	}
	return used-min(without, classesWithoutZone) < most && (s.isOfNodes(key.Zone) || invented < (most+1)/2)
}

// classesWithoutZone is how many classes without a zone there may be besides maxClasses: one for each combination of
// options that nodes are likely to have.
const classesWithoutZone = 8

// isOfNodes reports whether a zone is that of a Node. The caller holds mu.
func (s *Server) isOfNodes(zone string) bool { return zone == "" || s.zones[zone] > 0 }

// countZone counts the Nodes of each zone: old is replaced by node, either may be nil. The caller holds mu.
func (s *Server) countZone(old, node *corev1.Node) {
	if node != nil {
		s.zones[node.Labels[corev1.LabelTopologyZone]]++
	}
	if old == nil {
		return
	}
	zone := old.Labels[corev1.LabelTopologyZone]
	if s.zones[zone]--; s.zones[zone] == 0 {
		delete(s.zones, zone)
	}
}

// makeRoom returns an error if the limit allows no other class. If there are as many as allowed, it deletes those
// without clients. The caller holds work and mu.
func (s *Server) makeRoom(key localstate.Class) error {
	if !s.mayAddClass(key) {
		return fmt.Errorf("%w: %d", errTooManyClasses, len(s.classes))
	}
	if len(s.classes) >= s.limits.maxClasses {
		for other, class := range s.classes {
			if s.unused(class) {
				delete(s.classes, other)
			}
		}
	}
	return nil
}

// unused reports whether a class has no clients, none is creating it, and none is about to move to it. The caller holds
// mu.
func (s *Server) unused(g *group) bool {
	return len(g.clients) == 0 && g.current != nil && !s.named.isAwaited(g.key)
}
