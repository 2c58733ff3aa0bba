package frontend

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Changes is the difference, in one family, between what the backend last accepted and the wanted state. It is valid
// only during the call that receives it.
//
// A change that was undone before it was accepted is not included. Everything is ordered by name, so that the same
// state always gives the same result.
type Changes struct {
	table  *Table
	family *family
	asNew  bool // everything is reported as new
}

// Family is the IP family of the changes.
func (c *Changes) Family() model.Family { return c.family.family }

// Node returns the node as of the last Sync, an empty one if there was no SetNode. The backend has to find out itself
// what has changed in it.
func (c *Changes) Node() *model.Node { return c.table.current }

// Full reports whether the backend must not trust what it remembers of its dataplane: everything is reported as new,
// and anything else that the dataplane holds has to be removed. It is true at first, after [Table.ForceResync], and
// after [Table.ResyncFailed] for a family that had failed, until the changes are accepted.
func (c *Changes) Full() bool { return c.family.full }

// Retry reports whether the backend should try again what the dataplane refused. Refused service ports are delivered
// again then: see [PortChange.Refuse].
func (c *Changes) Retry() bool { return c.family.retry }

// All returns everything as new, even if Full is false: for backends that write the whole state, or compare it with
// what they read.
func (c *Changes) All() *Changes { return &Changes{c.table, c.family, true} }

// Difference returns only what differs from what was last accepted, even if Full is true. It is for backends that keep
// the wanted state themselves, such as those whose dataplane is in the process: for them Full means at most that the
// dataplane has to be read again.
func (c *Changes) Difference() *Changes { return &Changes{c.table, c.family, false} }

// Accept says that the backend has recorded the changes, including those that are not in the dataplane yet: they are
// not reported again, even if the call fails. A call that succeeds accepts the changes anyway. Nothing may be read from
// the changes afterwards.
func (c *Changes) Accept() {
	c.family.early = true
	c.family.accept(c.table)
}

// Ports returns the service ports that differ, or are to be tried again; if Full is true, all of them, as new.
func (c *Changes) Ports() iter.Seq[*PortChange] {
	return func(yield func(*PortChange) bool) {
		for _, p := range c.family.sorted(c.table.services, c.asNew) {
			if pc := c.change(p); pc.isChange() && !yield(pc) {
				return
			}
		}
	}
}

func (c *Changes) change(p *port) *PortChange {
	pc := &PortChange{Before: p.accepted, After: p.current, port: p}
	if c.asNew {
		pc.Before = nil
	}
	return pc
}

// Port returns a service port, as new, or nil.
func (c *Changes) Port(name model.PortName) *PortChange { return c.find(name).asNew() }

func (c *Changes) find(name model.PortName) *port {
	if s := c.table.services[name.Service]; s != nil {
		return s.port(portID{c.family, name.Port, name.Protocol})
	}
	return nil
}

// Owner returns the service port that has a frontend, as new, or nil. It is for backends that serve each node port at
// addresses of the node: if there is an owner at the same address and port, the node port is not served there (S59).
func (c *Changes) Owner(k Key) *PortChange { return c.family.owners.owner(k).asNew() }

// ClusterIPs returns the cluster IPs that were added or removed: new connections to their other ports have to be
// refused (S33). With Full all of them are reported as added.
func (c *Changes) ClusterIPs() Diff[netip.Addr] { return c.family.clusterIPs.changes(c.asNew) }

// HealthChecks returns the ports on which services began or ceased to answer health checks: a backend that filters the
// node's traffic has to accept it there. With Full all of them are reported as added.
func (c *Changes) HealthChecks() Diff[HealthCheck] { return c.family.healthChecks.changes(c.asNew) }

// PortChange is a service port that differs. Before and After belong to the table: copy what you keep after the call.
type PortChange struct {
	// Before is the port as the dataplane has it: as it was last accepted, nil if it is new. After is the port as
	// wanted, nil if it was removed.
	Before, After *Port

	port *port
}

// asNew returns a port as if it were new, or nil if there is none or it does not exist.
func (p *port) asNew() *PortChange {
	if p == nil || p.current == nil {
		return nil
	}
	return &PortChange{After: p.current, port: p}
}

// Name returns the name of the port.
func (c *PortChange) Name() model.PortName { return c.port.name }

func (c *PortChange) isChange() bool {
	if c.Before == nil || c.After == nil {
		return c.Before != c.After
	}
	if !c.Before.equal(c.After) || c.port.family.ledger.refused[c.port] != nil {
		return true
	}
	for range c.FrontendChanges() {
		return true
	}
	return slices.ContainsFunc(c.port.endpoints.sets[:], func(s slots) bool { return len(s.changes()) > 0 })
}

// Frontends returns the frontends that the port has, by key: those that it asks for and owns.
func (c *PortChange) Frontends() iter.Seq[Frontend] {
	p := c.port
	return func(yield func(Frontend) bool) {
		all := p.owned.total() == len(p.asked)
		for _, fr := range p.asked {
			if (all || p.family.owners.owner(fr.Key) == p) && !yield(fr) {
				return
			}
		}
	}
}

// FrontendChange is a frontend that a port gained (Before is nil), lost (After is nil), or has with another kind or
// restriction. A key that moves from one port to another is among the changes of both.
type FrontendChange struct { //nolint:revive // a Change of what? Ports change, too
	// Before and After have the same key. They are read-only.
	Before, After *Frontend
}

// Key returns the key of the frontend.
func (c FrontendChange) Key() Key {
	if c.Before != nil {
		return c.Before.Key
	}
	return c.After.Key
}

// FrontendChanges returns the frontends that differ, by key. A change of the port's routes or affinity is not a change
// of its frontends: compare Before and After of the PortChange for that.
func (c *PortChange) FrontendChanges() iter.Seq[FrontendChange] {
	return func(yield func(FrontendChange) bool) {
		if c.Before == nil {
			for fr := range c.Frontends() {
				if !yield(FrontendChange{After: &fr}) {
					return
				}
			}
			return
		}
		if len(c.port.frontends) == 0 {
			return // without an allocation
		}
		for _, k := range slices.SortedFunc(maps.Keys(c.port.frontends), Key.Compare) {
			before, after := c.port.frontends[k], Frontend{}
			if owners := &c.port.family.owners; owners.owner(k) == c.port {
				after = owners.byKey[k].frontend(k)
			}
			if before == after {
				continue
			}
			var change FrontendChange
			if before != (Frontend{}) {
				change.Before = &before
			}
			if after != (Frontend{}) {
				change.After = &after
			}
			if !yield(change) {
				return
			}
		}
	}
}

// Endpoints returns a backend set as wanted, by slot. It belongs to the table: do not change or keep it.
func (c *PortChange) Endpoints(set model.EndpointSets) []*model.Endpoint { return c.slots(set).list }

// slots returns a backend set, or an empty one if set names none.
func (c *PortChange) slots(set model.EndpointSets) *slots {
	if i := setIndex(set); i >= 0 {
		return &c.port.endpoints.sets[i]
	}
	return &slots{}
}

// Sets returns the backend sets that an endpoint is in as wanted.
func (c *PortChange) Sets(target netip.AddrPort) (sets model.EndpointSets) {
	if i := c.port.endpoints.find(target); i >= 0 {
		for k, set := range BackendSets() {
			if c.port.endpoints.all[i].slots[k] >= 0 {
				sets |= set
			}
		}
	}
	return sets
}

// EndpointChanges returns the slots of a backend set that differ, in their order.
func (c *PortChange) EndpointChanges(set model.EndpointSets) []EndpointChange {
	s := c.slots(set)
	if c.Before != nil {
		return s.changes()
	}
	list := make([]EndpointChange, len(s.list))
	for i, ep := range s.list {
		list[i] = EndpointChange{Slot: i, After: ep}
	}
	return list
}
