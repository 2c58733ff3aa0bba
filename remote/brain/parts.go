package brain

import (
	"iter"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/persistent"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
)

// ownParts are the parts of one node in the services of its class. It is immutable.
type ownParts struct {
	revision uint64
	parts    persistent.Map[model.ServiceName, *localstate.NodePart]
	sum      wire.Digest // of parts
}

// ownChange is the new part in a service; nil: it is gone.
type ownChange = persistent.Entry[model.ServiceName, *localstate.NodePart]

// change returns a copy with changes, each of another service, which it sorts. It costs what changes, however many
// parts there are. o may be nil.
func (o *ownParts) change(changes []ownChange, revision uint64) *ownParts {
	next := &ownParts{revision: revision}
	if o != nil {
		next.parts, next.sum = o.parts, o.sum
	}
	slices.SortFunc(changes, func(a, b ownChange) int { return a.Key.Compare(b.Key) })
	for _, c := range changes {
		if before := next.parts.Get(c.Key); before != nil {
			next.sum = next.sum.Sub(wire.PartDigest(c.Key, before))
		}
		if c.Value != nil {
			next.sum = next.sum.Add(wire.PartDigest(c.Key, c.Value))
		}
	}
	next.parts = next.parts.With(changes)
	return next
}

// part returns the node's part in a service, or nil. o may be nil.
func (o *ownParts) part(name model.ServiceName) *localstate.NodePart {
	if o == nil {
		return nil
	}
	return o.parts.Get(name)
}

// changesSince yields the parts that are not those of before, nil for those that are gone. Both may be nil.
func (o *ownParts) changesSince(before *ownParts) iter.Seq2[model.ServiceName, *localstate.NodePart] {
	if o == nil {
		o = &ownParts{}
	}
	if before == nil {
		before = &ownParts{}
	}
	return func(yield func(model.ServiceName, *localstate.NodePart) bool) {
		for name, part := range o.parts.ChangesSince(before.parts) {
			if !part.Equal(before.parts.Get(name)) && !yield(name, part) {
				return
			}
		}
	}
}

// nodeParts are the parts of the nodes that a class serves: those of all nodes together may be as many as the endpoints
// in the cluster. Of other nodes it has only the names: they are foreign. When such a node joins, because its zone has
// changed or because its Node was created after its endpoints, its parts are computed for all services with its
// endpoints.
type nodeParts struct {
	belongs func(node string) bool // Server.belongs

	// Guarded by the Server's work.
	cluster *localstate.State
	owners  map[model.ServiceName][]string // the nodes that have a part in a service, sorted

	// Written with the Server's work and mu held.
	own     map[string]*ownParts
	empty   int                 // how often a node in own has lost its last part
	foreign map[string]struct{} // see Server.adopt

	foreignLimit int // the size of foreign at which nodes that are gone are dropped from it
}

// isForeign reports whether the parts of a node are not kept, because another class serves it.
func (p *nodeParts) isForeign(node string) bool {
	_, is := p.foreign[node]
	return is
}

// updateOwn computes the parts of nodes in some services again. It returns the nodes whose parts changed, and foreign
// nodes.
func (p *nodeParts) updateOwn(names []model.ServiceName, revision uint64) (own map[string]*ownParts, foreign []string) {
	kept := map[string]bool{} // the class of a node may change meanwhile
	keep := func(node string) bool {
		keeps, known := kept[node]
		if !known {
			_, isForeign := p.foreign[node]
			keeps = p.own[node] != nil || !isForeign && p.belongs(node)
			kept[node] = keeps
			if !keeps && !isForeign {
				foreign = append(foreign, node)
			}
		}
		return keeps
	}
	return p.ownOf(names, keep, p.cluster.ChangedParts, revision), foreign
}

// ownOf computes the parts in some services of the nodes for which keep returns true. partsOf is ChangedParts of the
// class's State, or a function that returns all parts.
func (p *nodeParts) ownOf(names []model.ServiceName, keep func(node string) bool, partsOf partsFunc,
	revision uint64) map[string]*ownParts {
	news := map[string][]ownChange{}
	for _, name := range names {
		parts, all := partsOf(name, keep)
		for node := range p.lost(name, parts, all) {
			news[node] = append(news[node], ownChange{Key: name})
		}
		for node, part := range parts {
			if part != nil && !part.Equal(p.own[node].part(name)) {
				news[node] = append(news[node], ownChange{Key: name, Value: part})
			}
		}
		p.noteOwners(name, parts, all)
	}
	own := make(map[string]*ownParts, len(news))
	for node, changes := range news {
		own[node] = p.own[node].change(changes, revision) // also if no parts remain: that is a change, with a revision
	}
	return own
}

type partsFunc func(name model.ServiceName, keep func(node string) bool) (
	parts map[string]*localstate.NodePart, all bool)

// allParts is a partsFunc.
func (p *nodeParts) allParts(name model.ServiceName, keep func(node string) bool) (
	parts map[string]*localstate.NodePart, all bool) {
	return p.cluster.NodeParts(name, keep), true
}

// lost yields the nodes that no longer have a part in a service. parts are all parts of the service, or only those that
// changed.
func (p *nodeParts) lost(name model.ServiceName, parts map[string]*localstate.NodePart, all bool) iter.Seq[string] {
	owners := p.owners[name]
	return func(yield func(string) bool) {
		if all {
			for _, node := range owners {
				if parts[node] == nil && !yield(node) {
					return
				}
			}
			return
		}
		for node, part := range parts {
			if _, had := slices.BinarySearch(owners, node); had && part == nil && !yield(node) {
				return
			}
		}
	}
}

// noteOwners records which nodes have a part in a service.
func (p *nodeParts) noteOwners(name model.ServiceName, parts map[string]*localstate.NodePart, all bool) {
	owners := p.owners[name]
	if all {
		owners = slices.Sorted(maps.Keys(parts))
	} else {
		for node, part := range parts {
			switch at, is := slices.BinarySearch(owners, node); {
			case is && part == nil:
				owners = slices.Delete(owners, at, at+1)
			case !is && part != nil:
				owners = slices.Insert(owners, at, node)
			}
		}
	}
	if len(owners) == 0 {
		delete(p.owners, name)
	} else {
		p.owners[name] = owners
	}
}

// maxForgotten is how many nodes are remembered that have no parts any more, no Node, or no endpoint or hint that names
// them.
const maxForgotten = 1000

// makeForeign drops the parts of nodes: they become foreign.
func (p *nodeParts) makeForeign(nodes iter.Seq[string]) {
	dropped, concerned := map[string]struct{}{}, map[model.ServiceName]struct{}{}
	for node := range nodes {
		own := p.own[node]
		if own == nil {
			continue
		}
		dropped[node] = struct{}{}
		for name := range own.parts.All() {
			concerned[name] = struct{}{}
		}
	}
	for node := range dropped {
		delete(p.own, node)
		p.foreign[node] = struct{}{}
	}
	isDropped := func(node string) bool {
		_, is := dropped[node]
		return is
	}
	for name := range concerned {
		if p.owners[name] = slices.DeleteFunc(p.owners[name], isDropped); len(p.owners[name]) == 0 {
			delete(p.owners, name)
		}
	}
}

// forgetNodes drops nodes that have no parts and are not connected, and foreign nodes that no endpoint or hint names,
// but only once there are many.
func (p *nodeParts) forgetNodes(connected func(node string) bool) {
	if p.empty > maxForgotten {
		maps.DeleteFunc(p.own, func(node string, own *ownParts) bool { return own.parts.IsEmpty() && !connected(node) })
		p.empty = 0
	}
	if len(p.foreign) > p.foreignLimit {
		there := map[string]bool{}
		p.cluster.ServicesOn(func(node string) bool {
			there[node] = true
			return false
		})
		maps.DeleteFunc(p.foreign, func(node string, _ struct{}) bool { return !there[node] })
		p.foreignLimit = 2*len(p.foreign) + maxForgotten
	}
}
