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

// classFor returns the class that serves the nodes of a class: the class itself or, if the limit allows no other one,
// the class with the same options and without a zone. Its nodes use the endpoints that a node without a zone uses, so
// all their traffic works, but does not stay in the zone. The caller holds mu.
func (s *Server) classFor(key localstate.Class) localstate.Class {
	if key.Zone == "" || s.classes[key] != nil || s.mayAddClass(key) {
		return key
	}
	key.Zone = ""
	return key
}

// mayAddClass reports whether the limit allows another class. Each takes the memory of a whole state. A few beyond the
// limit are reserved for classes without a zone, because they serve the nodes for whose zone there can be no class; and
// at least half of the limit is for zones of Nodes, because a client may name any other zone. Classes without clients
// do not count, because they can be deleted. The caller holds mu.
func (s *Server) mayAddClass(key localstate.Class) bool {
	used, named := 0, 0
	for other, class := range s.classes {
		if class.unused() {
			continue
		}
		used++
		if !s.isOfNodes(other.Zone) {
			named++
		}
	}
	switch most := s.limits.maxClasses; {
	case key.Zone == "":
		return used < most+classesWithoutZone
	case s.isOfNodes(key.Zone):
		return used < most
	default:
		return used < most && named < (most+1)/2
	}
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
			if class.unused() {
				delete(s.classes, other)
			}
		}
	}
	return nil
}

// unused reports whether a class has no clients, and none is creating it.
func (g *group) unused() bool { return len(g.clients) == 0 && g.current != nil }
