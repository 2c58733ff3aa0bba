package iptables

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Load balancers ask a node for the health of a service on a port of its own (S38). Where the policy of INPUT is to drop,
// that has to be let through, or the load balancers take the node out. The services of both families count, since the node
// answers on its addresses of both.

// healthChecks are the node ports of health checks, with the services that have them: more than one only by mistake.
type healthChecks struct {
	ports    map[model.ServiceName]uint16
	services map[uint16][]model.ServiceName
}

// setHealthCheck notes the node port of a service's health check; nil is a service without one, or none.
func (f *family) setHealthCheck(name model.ServiceName, s *model.Service) {
	var port uint16
	if s != nil && s.HealthCheck != nil {
		port = s.HealthCheck.NodePort
	}
	h := &f.healthChecks
	before := h.ports[name]
	if before == port {
		return
	}
	if before != 0 {
		h.services[before] = slices.DeleteFunc(h.services[before], func(n model.ServiceName) bool { return n == name })
		delete(h.ports, name)
		f.acceptHealthCheck(before)
	}
	if port != 0 {
		h.services[port] = append(h.services[port], name)
		h.ports[name] = port
		f.acceptHealthCheck(port)
	}
}

// acceptHealthCheck has the tree follow.
func (f *family) acceptHealthCheck(port uint16) {
	k := key{port: port, protocol: model.TCP}
	services := f.healthChecks.services[port]
	if len(services) == 0 {
		delete(f.healthChecks.services, port)
		f.trees.healthChecks.remove(k)
		return
	}
	f.trees.healthChecks.set(&entry{key: k, owner: model.PortName{Service: services[0]}, to: target{rule: "-j ACCEPT"}})
}
