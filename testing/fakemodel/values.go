package fakemodel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// values is a node-local state of model values, set in any order. Flush makes the calls for what changed, in the order
// that package sink prescribes. The zero value is empty and ready to use.
type values struct {
	node     pair[*model.Node]
	services map[model.ServiceName]*modelService
	changed  map[model.ServiceName]struct{}
}

// pair has the wanted value and the one last sent to the receiver.
type pair[T any] struct{ wanted, sent T }

// modelService is one service with its endpoints.
type modelService struct {
	service   pair[*model.Service]
	endpoints map[model.EndpointKey]pair[*model.Endpoint]
	changed   map[model.EndpointKey]struct{}
}

// SetNode sets the node.
func (m *values) SetNode(node *model.Node) { m.node.wanted = node }

// SetService creates or replaces a service.
func (m *values) SetService(svc *model.Service) { m.touch(svc.Name).service.wanted = svc }

// DeleteService deletes a service and its endpoints.
func (m *values) DeleteService(name model.ServiceName) {
	s := m.touch(name)
	s.service.wanted = nil
	for key := range s.endpoints {
		s.set(key, nil)
	}
}

// SetEndpoint creates or replaces an endpoint. Its service must be set before Flush.
func (m *values) SetEndpoint(ep *model.Endpoint) { m.touch(ep.Port.Service).set(ep.Key(), ep) }

// DeleteEndpoint deletes an endpoint.
func (m *values) DeleteEndpoint(key model.EndpointKey) { m.touch(key.Port.Service).set(key, nil) }

func (m *values) touch(name model.ServiceName) *modelService {
	if m.services == nil {
		m.services = map[model.ServiceName]*modelService{}
		m.changed = map[model.ServiceName]struct{}{}
	}
	s := m.services[name]
	if s == nil {
		s = &modelService{endpoints: map[model.EndpointKey]pair[*model.Endpoint]{},
			changed: map[model.EndpointKey]struct{}{}}
		m.services[name] = s
	}
	m.changed[name] = struct{}{}
	return s
}

func (s *modelService) set(key model.EndpointKey, ep *model.Endpoint) {
	p := s.endpoints[key]
	p.wanted = ep
	s.endpoints[key] = p
	s.changed[key] = struct{}{}
}

// Flush passes everything that changed to the receiver, and reports whether anything did. If an endpoint belongs to no
// service port, it passes nothing and returns an error that names every such endpoint.
func (m *values) Flush(r localstate.Receiver) (changed bool, err error) {
	names := slices.SortedFunc(maps.Keys(m.changed), model.ServiceName.Compare)
	var errs []error
	for _, name := range names {
		errs = append(errs, m.services[name].orphans()...)
	}
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	if n, ok := r.(localstate.NodeReceiver); ok && m.node.wanted != nil && !m.node.wanted.Equal(m.node.sent) {
		n.SetNode(m.node.wanted)
		changed = true
	}
	m.node.sent = m.node.wanted
	for _, name := range names {
		if s := m.services[name]; s.service.wanted == nil {
			changed = s.flush(name, r) || changed
			delete(m.services, name)
		}
	}
	for _, name := range names {
		if s := m.services[name]; s != nil {
			changed = s.flush(name, r) || changed
		}
	}
	clear(m.changed)
	return changed, nil
}

// orphans returns an error for each endpoint that belongs to no port of the service. If the service did not change, it
// checks only the changed endpoints.
func (s *modelService) orphans() []error {
	svc := s.service.wanted
	var orphans []model.EndpointKey
	look := func(key model.EndpointKey) {
		if s.endpoints[key].wanted != nil && (svc == nil || svc.Port(key.Port.Port, key.Port.Protocol) == nil) {
			orphans = append(orphans, key)
		}
	}
	if svc == s.service.sent {
		for key := range s.changed {
			look(key)
		}
	} else {
		for key := range s.endpoints {
			look(key)
		}
	}
	slices.SortFunc(orphans, model.EndpointKey.Compare)
	var errs []error
	for _, key := range orphans {
		errs = append(errs, fmt.Errorf("endpoint %v belongs to no service port", key))
	}
	return errs
}

// flush passes on one service: deleted endpoints, the service, set endpoints. It reports whether anything changed.
func (s *modelService) flush(name model.ServiceName, r localstate.Receiver) (changed bool) {
	keys := slices.SortedFunc(maps.Keys(s.changed), model.EndpointKey.Compare)
	for _, key := range keys {
		if ep := s.endpoints[key]; ep.wanted == nil {
			if ep.sent != nil {
				r.DeleteEndpoint(key)
				changed = true
			}
			delete(s.endpoints, key)
		}
	}
	switch svc := &s.service; {
	case svc.wanted == nil && svc.sent != nil:
		r.DeleteService(name)
		changed = true
	case svc.wanted != nil && !svc.wanted.Equal(svc.sent):
		r.SetService(svc.wanted)
		changed = true
	}
	s.service.sent = s.service.wanted
	for _, key := range keys {
		if ep, ok := s.endpoints[key]; ok {
			if !ep.wanted.Equal(ep.sent) {
				r.SetEndpoint(ep.wanted)
				changed = true
			}
			s.endpoints[key] = pair[*model.Endpoint]{ep.wanted, ep.wanted}
		}
	}
	clear(s.changed)
	return changed
}

// Forget makes the next Flush pass on everything, as after a restart. It deletes nothing.
func (m *values) Forget() {
	m.node.sent = nil
	for name, s := range m.services {
		m.touch(name).service.sent = nil
		for key, ep := range s.endpoints {
			ep.sent = nil
			s.endpoints[key] = ep
			s.changed[key] = struct{}{}
		}
	}
}
