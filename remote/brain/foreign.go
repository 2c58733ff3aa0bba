package brain

import (
	"cmp"
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A class keeps nothing of nodes of other zones but their names. When such a node comes, because its zone has changed
// or because its Node came after its endpoints, what it has of its own is worked out for all services it is in.

// isForeign reports whether nothing is kept of a node.
func (c *class) isForeign(node string) bool {
	_, is := c.foreign[node]
	return is
}

// adopt has a class keep what a node has of its own. Nodes that have come from the same zone by now are adopted with
// it, because it takes a look at every endpoint.
func (s *Server) adopt(ctx context.Context, c *class, node string) {
	s.work.Lock()
	concerned := s.adoptNow(ctx, c, node)
	s.work.Unlock()
	concerned.deliver()
}

// adoptNow is adopt for a caller that holds work. It returns the sessions that have something to deliver.
func (s *Server) adoptNow(ctx context.Context, c *class, node string) (concerned toDeliver) {
	if !c.isForeign(node) {
		return nil
	}
	concerned = s.publishPending(ctx) // so that what is worked out now is of the class's newest version
	adopted := map[string]struct{}{node: {}}
	for other := range c.foreign {
		if c.zoneOf(other) == c.key.Zone {
			adopted[other] = struct{}{}
		}
	}
	isAdopted := func(node string) bool {
		_, is := adopted[node]
		return is
	}
	revision := s.revision + 1
	keep := func(node string) bool { return isAdopted(node) || c.own[node] != nil }
	own := c.ownOf(c.cluster.ServicesOn(isAdopted), keep, c.allParts, revision)
	for node := range adopted {
		if own[node] == nil {
			own[node] = &ownParts{revision: revision}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = revision
	maps.DeleteFunc(c.foreign, func(node string, _ struct{}) bool { return isAdopted(node) })
	update := classUpdate{own: own}
	c.install(update, s.sessions)
	for session := range c.concerned(s.sessions, update) {
		concerned.announce(session, time.Time{})
	}
	return concerned
}

// zoneOf returns the zone that a node has, or had before its Node went; "" if it has none.
func (s *Server) zoneOf(node string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := cmp.Or(s.nodes[node], s.former[node])
	if known == nil {
		return ""
	}
	return known.Labels[corev1.LabelTopologyZone]
}

// maxForgotten is how many nodes are remembered that have nothing of their own any more, or are not there any more.
const maxForgotten = 1000

// forgetNodes lets go of nodes that have nothing of their own any more, nor a client.
func (c *class) forgetNodes() {
	if c.empty > maxForgotten {
		connected := map[string]bool{}
		for s := range c.sessions {
			connected[s.node] = true
		}
		maps.DeleteFunc(c.own, func(node string, own *ownParts) bool { return len(own.parts) == 0 && !connected[node] })
		c.empty = 0
	}
	if len(c.foreign) > c.foreignLimit {
		there := map[string]bool{}
		c.cluster.ServicesOn(func(node string) bool {
			there[node] = true
			return false
		})
		maps.DeleteFunc(c.foreign, func(node string, _ struct{}) bool { return !there[node] })
		c.foreignLimit = 2*len(c.foreign) + maxForgotten
	}
}
