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

// modelSource feeds model values, set in any order. flush makes the calls for what changed, in the order that package
// sink prescribes.
type modelSource struct {
	state     *sink.FullState
	wanted    *sink.Snapshot // of the last flush
	sent      *sink.Snapshot // what the receiver has; empty at first
	node      *model.Node
	endpoints map[model.ServiceName]map[model.EndpointKey]bool // also those of services that are not set
	touched   map[model.ServiceName]bool                       // since the last flush that passed something
}

func newModelSource() *modelSource {
	s := &modelSource{sent: &sink.Snapshot{}, endpoints: map[model.ServiceName]map[model.EndpointKey]bool{},
		touched: map[model.ServiceName]bool{}}
	s.state = sink.NewFullState(func(_ context.Context, snapshot *sink.Snapshot) error {
		s.wanted = snapshot
		return nil
	})
	return s
}

func (*modelSource) takes(object any) bool {
	switch object.(type) {
	case *model.Node, *model.Service, *model.Endpoint, model.ServiceName, model.EndpointKey:
		return true
	}
	return false
}

func (*modelSource) String() string { return "model values" }

// set implements source. The service of an endpoint may be set later.
func (s *modelSource) set(object any) error {
	switch v := object.(type) {
	case *model.Node:
		s.node = v
		s.state.SetNode(v)
	case *model.Service:
		s.touched[v.Name] = true
		s.state.SetService(v)
	case *model.Endpoint:
		name := v.Port.Service
		if s.endpoints[name] == nil {
			s.endpoints[name] = map[model.EndpointKey]bool{}
		}
		s.endpoints[name][v.Key()], s.touched[name] = true, true
		s.state.SetEndpoint(v)
	default:
		return fmt.Errorf("a %T can only be deleted", object)
	}
	return nil
}

// delete implements source. It deletes the endpoints of a service too.
func (s *modelSource) delete(object any) error {
	switch v := object.(type) {
	case *model.Service:
		return s.delete(v.Name)
	case *model.Endpoint:
		return s.delete(v.Key())
	case model.ServiceName:
		s.touched[v] = true
		s.state.DeleteService(v)
		for key := range s.endpoints[v] {
			s.state.DeleteEndpoint(key)
		}
		delete(s.endpoints, v)
	case model.EndpointKey:
		delete(s.endpoints[v.Port.Service], v)
		s.state.DeleteEndpoint(v)
	default:
		return fmt.Errorf("a %T cannot be deleted", object)
	}
	return nil
}

// flush implements source. If an endpoint belongs to no service port, it passes nothing and returns an error that names
// every such endpoint.
func (s *modelSource) flush(to localstate.Receiver) (changed bool, err error) {
	if s.node == nil {
		_ = s.set(Node("n1").Build())
	}
	_ = s.state.Sync(context.Background()) // its callback never fails
	if err := s.orphans(); err != nil {
		return false, err
	}
	if n, ok := to.(localstate.NodeReceiver); ok && !s.node.Equal(s.sent.Node()) {
		n.SetNode(s.node)
		changed = true
	}
	var kept []sink.Change
	for c := range s.wanted.ChangesSince(s.sent) {
		changed = true
		if c.New != nil {
			kept = append(kept, c)
			continue
		}
		deleteEndpoints(c, to)
		to.DeleteService(c.Name)
	}
	for _, c := range kept {
		deleteEndpoints(c, to)
		if c.ServiceChanged() {
			to.SetService(c.New.Service)
		}
		for _, ep := range c.Endpoints() {
			if ep != nil {
				to.SetEndpoint(ep)
			}
		}
	}
	s.sent = s.wanted
	clear(s.touched)
	return changed, nil
}

func deleteEndpoints(c sink.Change, to localstate.Receiver) {
	for old, ep := range c.Endpoints() {
		if ep == nil {
			to.DeleteEndpoint(old.Key())
		}
	}
}

// orphans returns an error for each endpoint that belongs to no service port. Services that were not touched have none.
func (s *modelSource) orphans() error {
	var orphans []model.EndpointKey
	for name := range s.touched {
		entry := s.wanted.Service(name)
		for key := range s.endpoints[name] {
			if entry == nil || entry.Service.Port(key.Port.Port, key.Port.Protocol) == nil {
				orphans = append(orphans, key)
			}
		}
	}
	slices.SortFunc(orphans, model.EndpointKey.Compare)
	var errs []error
	for _, key := range orphans {
		errs = append(errs, fmt.Errorf("endpoint %v belongs to no service port", key))
	}
	return errors.Join(errs...)
}

func (s *modelSource) start(context.Context) error {
	s.sent = &sink.Snapshot{}
	return nil
}
