package fakemodel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// values is a node-local state of model values, set in any order. Flush makes the calls for what changed, in the order
// that package sink prescribes.
type values struct {
	state     *sink.FullState
	wanted    *sink.Snapshot // of the last Flush
	sent      *sink.Snapshot // what the receiver has; empty at first
	node      *model.Node
	endpoints map[model.EndpointKey]bool // also those of services that are not set
}

func newValues() *values {
	m := &values{sent: &sink.Snapshot{}, endpoints: map[model.EndpointKey]bool{}}
	m.state = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		m.wanted = s
		return nil
	})
	return m
}

// SetNode sets the node.
func (m *values) SetNode(node *model.Node) {
	m.node = node
	m.state.SetNode(node)
}

// SetService creates or replaces a service.
func (m *values) SetService(svc *model.Service) { m.state.SetService(svc) }

// DeleteService deletes a service and its endpoints.
func (m *values) DeleteService(name model.ServiceName) {
	m.state.DeleteService(name)
	for key := range m.endpoints {
		if key.Port.Service == name {
			m.DeleteEndpoint(key)
		}
	}
}

// SetEndpoint creates or replaces an endpoint. Its service must be set before Flush.
func (m *values) SetEndpoint(ep *model.Endpoint) {
	m.endpoints[ep.Key()] = true
	m.state.SetEndpoint(ep)
}

// DeleteEndpoint deletes an endpoint.
func (m *values) DeleteEndpoint(key model.EndpointKey) {
	delete(m.endpoints, key)
	m.state.DeleteEndpoint(key)
}

// Flush passes everything that changed to the receiver, and reports whether anything did. If an endpoint belongs to no
// service port, it passes nothing and returns an error that names every such endpoint.
func (m *values) Flush(r localstate.Receiver) (changed bool, err error) {
	_ = m.state.Sync(context.Background()) // its callback never fails
	if err := m.orphans(); err != nil {
		return false, err
	}
	if n, ok := r.(localstate.NodeReceiver); ok && m.node != nil && !m.node.Equal(m.sent.Node()) {
		n.SetNode(m.node)
		changed = true
	}
	var kept []sink.Change
	for c := range m.wanted.ChangesSince(m.sent) {
		changed = true
		if c.New != nil {
			kept = append(kept, c)
			continue
		}
		deleteEndpoints(c, r)
		r.DeleteService(c.Name)
	}
	for _, c := range kept {
		deleteEndpoints(c, r)
		if c.ServiceChanged() {
			r.SetService(c.New.Service)
		}
		for _, ep := range c.Endpoints() {
			if ep != nil {
				r.SetEndpoint(ep)
			}
		}
	}
	m.sent = m.wanted
	return changed, nil
}

func deleteEndpoints(c sink.Change, r localstate.Receiver) {
	for old, ep := range c.Endpoints() {
		if ep == nil {
			r.DeleteEndpoint(old.Key())
		}
	}
}

// orphans returns an error for each endpoint that belongs to no service port.
func (m *values) orphans() error {
	var orphans []model.EndpointKey
	for key := range m.endpoints {
		s := m.wanted.Service(key.Port.Service)
		if s == nil || s.Service.Port(key.Port.Port, key.Port.Protocol) == nil {
			orphans = append(orphans, key)
		}
	}
	slices.SortFunc(orphans, model.EndpointKey.Compare)
	var errs []error
	for _, key := range orphans {
		errs = append(errs, fmt.Errorf("endpoint %v belongs to no service port", key))
	}
	return errors.Join(errs...)
}

// Forget makes the next Flush pass on everything, as after a restart. It deletes nothing.
func (m *values) Forget() { m.sent = &sink.Snapshot{} }
