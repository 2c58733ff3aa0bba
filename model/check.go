package model

import (
	"fmt"
	"iter"
)

// Check checks the invariants in the package's documentation for a service and the endpoints of all its ports. It
// returns nil if all hold. Otherwise the error joins all violations, each with the name of the service port or
// endpoint. An endpoint of another service is an error as well.
func Check(s *Service, endpoints iter.Seq[*Endpoint]) error {
	c := checker{service: s, ports: map[portKey]*ServicePort{}, usable: map[portFamily]EndpointSets{}}
	for i := range s.Ports {
		if p := &s.Ports[i]; c.ports[portKey{p.Name, p.Protocol}] == nil { // the first of a name counts, as in Service.Port
			c.ports[portKey{p.Name, p.Protocol}] = p
		}
	}
	for e := range endpoints {
		c.endpoint(e)
	}
	for _, port := range s.Ports {
		for _, f := range Families() {
			c.port(port, f)
		}
	}
	_, err := result(s, c.problems)
	return err
}

// portKey identifies a port of a service.
type portKey struct {
	name     string
	protocol Protocol
}

// portFamily is a port of a service in one family.
type portFamily struct {
	port   PortName
	family Family
}

type checker struct {
	problems
	service *Service
	ports   map[portKey]*ServicePort
	usable  map[portFamily]EndpointSets // the sets that are not empty
}

func (c *checker) endpoint(e *Endpoint) {
	c.object = "endpoint " + e.Key().String()
	port := c.ports[portKey{e.Port.Port, e.Port.Protocol}]
	if e.Port.Service != c.service.Name || port == nil {
		c.add("port", "service %v has no such port", c.service.Name)
		return
	}
	if e.Sets == 0 {
		return
	}
	if !e.Ready && !e.Serving {
		c.add("sets", "in the %v set, but not serving", e.Sets)
	}
	if e.Sets.Has(LocalSet) && !e.Local {
		c.add("sets", "in the Local set, but not local")
	}
	c.usable[portFamily{e.Port, e.Family()}] |= e.Sets
}

// port checks the routes of a port against its empty sets.
func (c *checker) port(port ServicePort, f Family) {
	routes, name := *port.Routes.At(f), c.service.PortName(port)
	c.object = fmt.Sprintf("service port %v", name)
	sets := c.usable[portFamily{name, f}]
	// If a route uses the cluster set and that is empty, no endpoint is usable anywhere.
	nothing := routes.Sets().Has(ClusterSet) && !sets.Has(ClusterSet)
	if nothing && sets != 0 {
		c.add("routes."+f.String(), "the Cluster set is empty, but the %v set is not", sets)
	}
	for _, k := range routes.kinds() {
		field := fmt.Sprintf("routes.%v.%s", f, k.field)
		switch {
		case k.route.IsZero():
		case k.route.Endpoints == ClusterSet && k.route.Empty != Reject:
			c.add(field, "drops, but no endpoint is usable anywhere")
		case k.route.Endpoints != LocalSet:
		case nothing && k.route.Empty != Reject:
			c.add(field, "drops although no endpoint is usable anywhere")
		case sets != 0 && k.route.Empty != Drop:
			c.add(field, "rejects, but an endpoint is usable")
		}
	}
}
