package sink

import (
	"cmp"
	"context"
	"slices"

	"github.com/tidwall/btree"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// state collects the calls of a Sink and makes snapshots of the result. Calls only record changes; apply applies the
// changes of a wave to the tree; snapshot makes a copy of the tree that shares everything with it until one of them is
// written to.
//
// The tree is never handed out: only copies of it are, and those are only read. That makes reading them from other
// goroutines safe while the tree changes, because the tree copies a node that it shares before it writes to it.
type state struct {
	pending   []*pendingService // in the order of the calls: usually by name, if there are many
	unordered bool              // the calls were not ordered by name, so byName has the services
	byName    map[model.ServiceName]*pendingService
	last      *pendingService // that of the last call; the next call usually concerns the same one
	node      *model.Node
	// Pending changes are allocated in blocks, which grow with the wave. These are the unused remainders; the endpoints
	// of last begin where freeEndpoints does.
	freeServices  []pendingService
	freeEndpoints []pendingEndpoint

	tree      *btree.BTreeG[*ServiceEntry]
	endpoints int // in tree
	// withoutService holds back the endpoints of services that are not set.
	withoutService map[model.ServiceName][]*model.Endpoint
	appliedNode    *model.Node

	origin   *origin
	revision uint64
	// changes counts the changes of entries since the beginning; history has the names of the most recent ones, at most as
	// many as there are services: an older snapshot is compared as a whole, which is no more expensive. Snapshots share
	// history's array, which is only appended to and cut at the front.
	changes uint64
	history []model.ServiceName

	splices []splice // scratch space of merge
}

// origin distinguishes the snapshots of one state from those of others. It is not empty because pointers to empty
// values may be equal.
type origin struct{ _ byte }

// pendingService has the changes of one service for the next apply.
type pendingService struct {
	name           model.ServiceName
	service        *model.Service // if serviceChanges: the service, or nil if it is deleted
	serviceChanges bool
	endpoints      []pendingEndpoint // in the order of the calls, later ones win
	inBlock        bool              // endpoints begin where freeEndpoints do, unless they have outgrown them
	unordered      bool              // endpoints may be unsorted or contain duplicates
	compactAt      int               // length of endpoints at which overwritten ones are dropped
}

// pendingEndpoint is an endpoint to set or to delete; to delete one only the key is used.
type pendingEndpoint struct {
	endpoint *model.Endpoint
	goes     bool
}

func newState() state {
	return state{
		byName:         map[model.ServiceName]*pendingService{},
		withoutService: map[model.ServiceName][]*model.Endpoint{},
		tree: btree.NewBTreeGOptions(func(a, b *ServiceEntry) bool { return a.name.Compare(b.name) < 0 },
			btree.Options{NoLocks: true}),
		origin: &origin{},
	}
}

// SetNode implements [NodeSetter].
func (s *state) SetNode(node *model.Node) { s.node = node }

// SetService implements [Sink].
func (s *state) SetService(service *model.Service) {
	if service != nil {
		p := s.pendingFor(service.Name)
		p.service, p.serviceChanges = service, true
	}
}

// DeleteService implements [Sink].
func (s *state) DeleteService(name model.ServiceName) {
	p := s.pendingFor(name)
	p.service, p.serviceChanges = nil, true
}

// SetEndpoint implements [Sink].
func (s *state) SetEndpoint(endpoint *model.Endpoint) {
	if endpoint != nil {
		s.addEndpoint(endpoint.Port.Service, pendingEndpoint{endpoint: endpoint})
	}
}

// DeleteEndpoint implements [Sink].
func (s *state) DeleteEndpoint(key model.EndpointKey) {
	s.addEndpoint(key.Port.Service, pendingEndpoint{&model.Endpoint{Port: key.Port, Target: key.Target}, true})
}

func (s *state) pendingFor(name model.ServiceName) *pendingService {
	if s.last != nil && s.last.name == name {
		return s.last
	}
	if p := s.last; p != nil && p.inBlock {
		// The service keeps its part of the block, unless its endpoints have outgrown it and were moved.
		if n := len(p.endpoints); n <= cap(s.freeEndpoints) {
			p.endpoints, s.freeEndpoints = p.endpoints[:n:n], s.freeEndpoints[n:n]
		}
		p.inBlock = false
	}
	s.last = s.find(name)
	if s.last == nil {
		if len(s.freeServices) == 0 {
			s.freeServices = make([]pendingService, min(max(len(s.pending), 1), 64))
		}
		s.last, s.freeServices = &s.freeServices[0], s.freeServices[1:]
		s.last.name = name
		s.pending = append(s.pending, s.last)
		if s.unordered {
			s.byName[name] = s.last
		}
	}
	return s.last
}

// find returns the pending changes of a service, or nil if there are none: then the service may be appended.
func (s *state) find(name model.ServiceName) *pendingService {
	if s.unordered {
		return s.byName[name]
	}
	n := len(s.pending)
	if n == 0 || s.pending[n-1].name.Compare(name) < 0 {
		return nil
	}
	i, found := slices.BinarySearchFunc(s.pending, name, func(p *pendingService, name model.ServiceName) int {
		return p.name.Compare(name)
	})
	if found {
		return s.pending[i]
	}
	s.unordered = true
	for _, p := range s.pending {
		s.byName[p.name] = p
	}
	return nil
}

func (s *state) addEndpoint(name model.ServiceName, e pendingEndpoint) {
	p := s.pendingFor(name)
	if p.endpoints == nil {
		if cap(s.freeEndpoints) < 4 {
			s.freeEndpoints = make([]pendingEndpoint, 0, min(4*len(s.pending), 1024))
		}
		p.endpoints, p.inBlock = s.freeEndpoints, true
	}
	p.add(e)
}

func (p *pendingService) add(e pendingEndpoint) {
	// They usually arrive sorted, and are in the CPU cache now: checking all of them later takes much longer.
	if n := len(p.endpoints); n > 0 && compareEndpoints(p.endpoints[n-1].endpoint, e.endpoint) >= 0 {
		p.unordered = true
	}
	p.endpoints = append(p.endpoints, e)
	if len(p.endpoints) > p.compactAt {
		p.compact()
		p.compactAt = 2*len(p.endpoints) + 64
	}
}

// compact sorts the endpoints by key and keeps the last call for each.
func (p *pendingService) compact() {
	if !p.unordered {
		return
	}
	p.unordered = false
	order := func(a, b pendingEndpoint) int { return compareEndpoints(a.endpoint, b.endpoint) }
	slices.SortStableFunc(p.endpoints, order)
	kept := p.endpoints[:0]
	for i, e := range p.endpoints {
		if i+1 == len(p.endpoints) || order(e, p.endpoints[i+1]) != 0 {
			kept = append(kept, e)
		}
	}
	p.endpoints = kept
}

// compareEndpoints orders endpoints of one service as their keys are ordered.
func compareEndpoints(a, b *model.Endpoint) int {
	if c := cmp.Compare(a.Port.Port, b.Port.Port); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Port.Protocol, b.Port.Protocol); c != 0 {
		return c
	}
	return model.CompareTargets(a.Target, b.Target)
}

// apply applies the pending changes to the tree and reports whether anything differs.
func (s *state) apply(ctx context.Context) (changed bool) {
	before, first := s.changes, s.tree.Len() == 0
	for _, p := range s.pending {
		p.compact()
		if s.applyService(ctx, p, first) {
			s.changes++
			s.history = append(s.history, p.name)
		}
	}
	if tooMany := len(s.history) - s.tree.Len(); tooMany > 0 {
		s.history = s.history[tooMany:]
	}
	s.last, s.freeServices, s.freeEndpoints = nil, nil, nil
	if len(s.pending) > 64 {
		// Clearing costs as much as the map ever held.
		s.pending, s.byName = nil, map[model.ServiceName]*pendingService{}
	} else {
		clear(s.pending)
		s.pending = s.pending[:0]
		clear(s.byName)
	}
	s.unordered = false
	nodeChanged := !s.node.Equal(s.appliedNode)
	s.appliedNode = s.node
	return nodeChanged || s.changes != before
}

// applyService applies the pending changes of one service. first: the tree was empty before this wave.
func (s *state) applyService(ctx context.Context, p *pendingService, first bool) (changed bool) {
	name := p.name
	var old *ServiceEntry
	if !first {
		old, _ = s.tree.Get(&ServiceEntry{name: name})
	}
	var service *model.Service
	endpoints := s.withoutService[name]
	if old != nil {
		service, endpoints = old.Service, old.Endpoints
	}
	if p.serviceChanges {
		service = p.service
	}
	endpoints, endpointsChanged := s.merge(endpoints, p.endpoints)

	if service == nil {
		if len(endpoints) > 0 {
			klog.FromContext(ctx).Info("Endpoints wait until their service is set", "service", name,
				"endpoints", len(endpoints))
			s.withoutService[name] = endpoints
		} else {
			delete(s.withoutService, name)
		}
		if old != nil {
			s.tree.Delete(old)
			s.endpoints -= len(old.Endpoints)
		}
		return old != nil
	}
	if old != nil {
		if !endpointsChanged && service.Equal(old.Service) {
			return false
		}
		s.endpoints -= len(old.Endpoints)
	}
	entry := &ServiceEntry{Service: service, Endpoints: endpoints, name: name}
	if first {
		s.tree.Load(entry) // fast if the entries arrive sorted
	} else {
		s.tree.Set(entry)
	}
	s.endpoints += len(endpoints)
	delete(s.withoutService, name)
	return true
}

// splice is a place in a list of endpoints at which one is removed, inserted, or both.
type splice struct {
	at     int
	remove bool
	insert *model.Endpoint
}

// merge returns the endpoints with the changes applied, both sorted, and whether that made a difference. The list may
// be in a snapshot, so a new one is made, with as little work as possible for each endpoint that stays.
func (s *state) merge(endpoints []*model.Endpoint, changes []pendingEndpoint) (_ []*model.Endpoint, changed bool) {
	if len(endpoints) == 0 {
		return comingOf(changes)
	}
	clear(s.splices)
	splices, size, at := s.splices[:0], len(endpoints), 0
	for _, c := range changes {
		i, found := slices.BinarySearchFunc(endpoints[at:], c.endpoint, compareEndpoints)
		at += i
		switch {
		case c.goes && found:
			splices = append(splices, splice{at: at, remove: true})
			size--
		case c.goes || found && c.endpoint.Equal(endpoints[at]):
		default:
			splices = append(splices, splice{at, found, c.endpoint})
			if !found {
				size++
			}
		}
	}
	s.splices = splices
	if len(splices) == 0 {
		return endpoints, false
	}
	if size == 0 {
		return nil, true
	}
	merged, at := make([]*model.Endpoint, 0, size), 0
	for _, p := range splices {
		merged = append(merged, endpoints[at:p.at]...)
		at = p.at
		if p.remove {
			at++
		}
		if p.insert != nil {
			merged = append(merged, p.insert)
		}
	}
	return append(merged, endpoints[at:]...), true
}

// comingOf returns the endpoints to set, and whether there are any.
func comingOf(changes []pendingEndpoint) (list []*model.Endpoint, any bool) {
	for _, c := range changes {
		if !c.goes {
			if list == nil {
				list = make([]*model.Endpoint, 0, len(changes))
			}
			list = append(list, c.endpoint)
		}
	}
	return list, list != nil
}

// snapshot returns what has been applied.
func (s *state) snapshot(r resync) *Snapshot {
	s.revision++
	return &Snapshot{
		origin:    s.origin,
		revision:  s.revision,
		resync:    r,
		node:      s.appliedNode,
		services:  *s.tree.Copy(),
		endpoints: s.endpoints,
		changes:   s.changes,
		history:   s.history,
	}
}
