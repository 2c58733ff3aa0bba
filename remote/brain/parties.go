package brain

import (
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// party is who a client's streams, classes and turns are counted for: its node; or the viewer who looks, so that no
// viewer can take the places of the nodes that it names.
type party struct{ node, viewer string }

func (p party) String() string {
	if p.viewer != "" {
		return "viewer " + p.viewer
	}
	return "node " + p.node
}

func (c *session) party() party {
	if c.viewer != "" {
		return party{viewer: c.viewer}
	}
	return party{node: c.node}
}

const (
	// maxPerParty is the number of clients of one party, so that none can take the places of all. A node has one, and
	// for some time those whose connections broke without a word.
	maxPerParty = 64
	// maxClassesPerParty is the number of classes that the clients of one party are in, and that stay because they have
	// been. A node is in one, and its options decide in which, so that otherwise one certificate could make them all.
	maxClassesPerParty = 4
)

// enter counts a client. The caller holds mu.
func (s *Server) enter(c *session) {
	p := c.party()
	if s.parties[p] == nil {
		s.parties[p] = map[*session]struct{}{}
	}
	if s.sessions[c.node] == nil {
		s.sessions[c.node] = map[*session]struct{}{}
	}
	s.parties[p][c], s.sessions[c.node][c] = struct{}{}, struct{}{}
	s.clients++
	s.entered++
	c.number = s.entered
}

// exit is the end of what enter began. The caller holds mu.
func (s *Server) exit(c *session) {
	remove(s.parties, c.party(), c)
	remove(s.sessions, c.node, c)
	s.clients--
}

func remove[K comparable](from map[K]map[*session]struct{}, key K, c *session) {
	if delete(from[key], c); len(from[key]) == 0 {
		delete(from, key)
	}
}

// choose has a client in a class, or wait for it until it is made, unless its party has enough of them. The class that
// the client was in before does not count, and those that the party has left make room. The caller holds mu.
func (s *Server) choose(c *session, key localstate.Class) error {
	if c.chosen != nil && *c.chosen == key {
		return nil
	}
	return s.chooseAnew(c, key)
}

// chooseAnew is choose for a client that is not in that class. It is apart because its key is kept: choose is called
// for each batch, and should allocate nothing.
func (s *Server) chooseAnew(c *session, key localstate.Class) error {
	p := c.party()
	used := map[localstate.Class]struct{}{key: {}}
	for other := range s.parties[p] {
		if other != c && other.chosen != nil {
			used[*other.chosen] = struct{}{}
		}
	}
	if len(used) > maxClassesPerParty {
		return fmt.Errorf("%v uses %d classes of nodes already (zones and options that differ)", p, maxClassesPerParty)
	}
	c.chosen = &key
	idle := 0
	for key, class := range s.classes {
		if _, is := used[key]; is || class.last != p || len(class.sessions) > 0 || class.current == nil {
			continue
		}
		if idle++; len(used)+idle > maxClassesPerParty {
			delete(s.classes, key)
		}
	}
	return nil
}
