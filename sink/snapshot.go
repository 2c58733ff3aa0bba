package sink

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/tidwall/btree"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Snapshot is the state at one Sync: all services, and the endpoints of each. It is immutable: it may be kept forever
// and read from any goroutine. Snapshots share what they have in common, so the time and memory for a new one are
// proportional to what changed since the previous one. The zero Snapshot is empty.
type Snapshot struct {
	origin    *origin
	revision  uint64
	resync    resync
	node      *model.Node
	services  btree.BTreeG[*ServiceEntry] // only read: it shares its nodes with other snapshots
	endpoints int
	changes   uint64 // the number of changes of entries since the beginning
	history   []model.ServiceName
}

// ServiceEntry is a service with its endpoints. Like the values that it holds it is immutable.
type ServiceEntry struct {
	// Service is never nil.
	Service *model.Service
	// Endpoints are those of all ports and both families, in [model.EndpointKey] order: a port's are next to each
	// other, the IPv4 ones first.
	Endpoints []*model.Endpoint

	name model.ServiceName // Service.Name
}

// Revision numbers the snapshots of one [FullState], from 1.
func (s *Snapshot) Revision() uint64 { return s.revision }

// FullResync reports that the callback must not trust its record of the dataplane for at least one family: it has to
// read what the dataplane has and correct it, without a gap in service. See [Snapshot.FullResyncOf].
func (s *Snapshot) FullResync() bool { return s.resync.families != 0 }

// FullResyncOf is FullResync for one family. It is set in the first snapshot, after [FullState.ForceResync] and, for
// families that failed, after [FullState.ResyncFailed], until the callback has succeeded for the family.
func (s *Snapshot) FullResyncOf(f model.Family) bool { return s.resync.families.Has(f) }

// RetryDue reports that what failed has to be applied in full now: it is set after [FullState.ForceResync] and
// [FullState.ResyncFailed], for one call of the callback. While it is not set, a callback may leave alone a family or
// service port that failed, and return its error again.
func (s *Snapshot) RetryDue() bool { return s.resync.retryDue }

// Node returns the node, or nil if there was no SetNode.
func (s *Snapshot) Node() *model.Node { return s.node }

// NumServices returns the number of services.
func (s *Snapshot) NumServices() int { return s.services.Len() }

// NumEndpoints returns the number of endpoints of all services together.
func (s *Snapshot) NumEndpoints() int { return s.endpoints }

// Services yields all services in the order of their names.
func (s *Snapshot) Services() iter.Seq[*ServiceEntry] {
	return func(yield func(*ServiceEntry) bool) { s.services.Scan(yield) }
}

// Service returns a service with its endpoints, or nil if there is none with that name.
func (s *Snapshot) Service(name model.ServiceName) *ServiceEntry {
	e, _ := s.services.Get(&ServiceEntry{name: name})
	return e
}

// String returns a summary, for example "revision 3 (services: 2, endpoints: 5)".
func (s *Snapshot) String() string {
	return fmt.Sprintf("revision %d (services: %d, endpoints: %d)", s.Revision(), s.NumServices(), s.NumEndpoints())
}

// PortEndpoints returns the endpoints of one port, whatever their sets, sorted by address (IPv4 first) and port number.
// The result is a part of e.Endpoints.
func (e *ServiceEntry) PortEndpoints(port string, protocol model.Protocol) []*model.Endpoint {
	of := model.PortName{Port: port, Protocol: protocol}
	first, _ := slices.BinarySearchFunc(e.Endpoints, of, comparePort)
	rest := e.Endpoints[first:]
	n, _ := slices.BinarySearchFunc(rest, of, func(e *model.Endpoint, of model.PortName) int {
		return cmp.Or(comparePort(e, of), -1) // equal ones come before the position searched for, the end of the port
	})
	return rest[:n:n]
}

// comparePort orders by port, within a service.
func comparePort(e *model.Endpoint, of model.PortName) int {
	return cmp.Or(cmp.Compare(e.Port.Port, of.Port), cmp.Compare(e.Port.Protocol, of.Protocol))
}

// SetEndpoints yields the endpoints of one port and family that are in a set, sorted by address and port number. With
// set = route.Endpoints these are the endpoints that a [model.Route] balances over.
func (e *ServiceEntry) SetEndpoints(port string, protocol model.Protocol, family model.Family,
	set model.EndpointSets) iter.Seq[*model.Endpoint] {
	return func(yield func(*model.Endpoint) bool) {
		for _, ep := range e.PortEndpoints(port, protocol) {
			if ep.Family() == family && ep.Sets.Has(set) && !yield(ep) {
				return
			}
		}
	}
}

// equal reports whether two entries have the same content.
func (e *ServiceEntry) equal(o *ServiceEntry) bool {
	if e == o || e == nil || o == nil {
		return e == o
	}
	if len(e.Endpoints) != len(o.Endpoints) || !e.Service.Equal(o.Service) {
		return false
	}
	same := identical(e.Endpoints, o.Endpoints) // as a rule nearly all of them
	return slices.EqualFunc(e.Endpoints[same:], o.Endpoints[same:], (*model.Endpoint).Equal)
}
