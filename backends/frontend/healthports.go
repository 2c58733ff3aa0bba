package frontend

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// healthPorts finds health checks of load balancers (S38) whose port is also a node port: requests to it reach the
// service that has the node port. The API server allocates each number only once, but a number that is taken can be
// written by hand, or come from a backup.
type healthPorts struct {
	services map[uint16]map[model.ServiceName]bool // by port of their health check
	touched  map[uint16]bool                       // ports to check
}

// set notes that a service answers health checks on a port, or no longer does.
func (h *healthPorts) set(s *model.Service, answers bool) {
	if s == nil || s.HealthCheck == nil {
		return
	}
	port := s.HealthCheck.NodePort
	names := h.services[port]
	switch {
	case answers && names == nil:
		h.services[port] = map[model.ServiceName]bool{s.Name: true}
	case answers:
		names[s.Name] = true
	case len(names) <= 1:
		delete(h.services, port)
	default:
		delete(names, s.Name)
	}
	h.touched[port] = true
}

// touch notes that a node port may get another owner.
func (h *healthPorts) touch(k Key) {
	if k.IsNodePort() && k.Protocol == model.TCP && h.services[k.Port] != nil {
		h.touched[k.Port] = true
	}
}

// findHealthPorts reports, once each, the health checks that a node port hides, and forgets those that are no longer
// hidden.
func (t *Table) findHealthPorts(ctx context.Context) {
	h := t.healthPorts
	for _, port := range slices.Sorted(maps.Keys(h.touched)) {
		for _, name := range slices.SortedFunc(maps.Keys(h.services[port]), model.ServiceName.Compare) {
			s := t.services[name]
			for _, f := range t.families {
				owner := f.owners.owner(Key{Port: port, Protocol: model.TCP})
				if owner == nil || len(s.object.Ports) == 0 {
					t.forgetHealthPort(s, f)
					continue
				}
				p := Problem{Family: f.family, Port: s.object.PortName(s.object.Ports[0]), Reason: HealthCheckPortInUse,
					Owner: owner.name, Message: fmt.Sprintf("load balancers do not reach the service's health check: port %d "+
						"is the node port of %v", port, owner.name)}
				if _, known := s.problems[p.key()]; !known {
					t.forgetHealthPort(s, f) // of a port that was the first one
				}
				t.found(ctx, s, p)
			}
		}
	}
	clear(h.touched)
}

// forgetHealthPort forgets that a node port hides the health check of a service in a family.
func (t *Table) forgetHealthPort(s *service, f *family) {
	for p := range s.problems {
		if p.Reason == HealthCheckPortInUse && p.Family == f.family {
			delete(s.problems, p)
			t.reporter.mark(s.name)
		}
	}
}
