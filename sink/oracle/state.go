package oracle

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// State is the node-local state: everything that a backend has received.
type State struct {
	// Node is required: it has the node's own addresses, and how its pods are recognised.
	Node *model.Node
	// Services and Endpoints are in any order. They are only read.
	Services  []*model.Service
	Endpoints []*model.Endpoint
}

// Collect makes a State from iterators, in any order.
func Collect(node *model.Node, services iter.Seq[*model.Service], endpoints iter.Seq[*model.Endpoint]) State {
	return State{Node: node, Services: slices.Collect(services), Endpoints: slices.Collect(endpoints)}
}

// String returns the node, the services ordered by name with all their routes, and after each its endpoints.
func (s State) String() string {
	var b strings.Builder
	if s.Node != nil {
		fmt.Fprintln(&b, s.Node)
	}
	endpoints := map[model.ServiceName][]*model.Endpoint{}
	for _, ep := range s.Endpoints {
		endpoints[ep.Port.Service] = append(endpoints[ep.Port.Service], ep)
	}
	for _, svc := range slices.SortedFunc(slices.Values(s.Services),
		func(a, b *model.Service) int { return a.Name.Compare(b.Name) }) {
		fmt.Fprintln(&b, svc)
		own := endpoints[svc.Name]
		slices.SortFunc(own, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
		for _, ep := range own {
			fmt.Fprintf(&b, "  %v\n", ep)
		}
	}
	return b.String()
}

// validate returns the contradictions in a state, for which no outcome is defined.
func (s State) validate() error {
	var errs []error
	services, ports := map[model.ServiceName]bool{}, map[model.PortName]bool{}
	for _, svc := range s.Services {
		if services[svc.Name] {
			errs = append(errs, fmt.Errorf("duplicate service %v", svc.Name))
		}
		services[svc.Name] = true
		for _, p := range svc.Ports {
			ports[svc.PortName(p)] = true
		}
	}
	seen := map[model.EndpointKey]bool{}
	for _, ep := range s.Endpoints {
		key := ep.Key()
		if seen[key] {
			errs = append(errs, fmt.Errorf("duplicate endpoint %v", key))
		}
		seen[key] = true
		if !ports[key.Port] {
			errs = append(errs, fmt.Errorf("endpoint %v belongs to no service port", key))
		}
	}
	return errors.Join(errs...)
}
