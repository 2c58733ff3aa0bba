package model

import (
	"fmt"
	"iter"
)

// Check tells which of the invariants that the package's documentation names do not hold for a service and its
// endpoints, those of all its ports; nil if all hold. Endpoints of other services are problems as well. The error joins
// everything that is wrong, each with the name of the service port or endpoint.
func Check(s *Service, endpoints iter.Seq[*Endpoint]) error {
	c := checker{service: s, usable: map[portFamily]EndpointSets{}}
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

// portFamily is a port of a service in one family.
type portFamily struct {
	port   PortName
	family Family
}

type checker struct {
	problems
	service *Service
	usable  map[portFamily]EndpointSets // the sets that are not empty
}

func (c *checker) endpoint(e *Endpoint) {
	c.object = "endpoint " + e.Key().String()
	port := c.service.Port(e.Port.Port, e.Port.Protocol)
	if e.Port.Service != c.service.Name || port == nil {
		c.add("port", "is none of service %v", c.service.Name)
		return
	}
	if e.Sets == 0 {
		return
	}
	if !e.Ready && !e.Serving {
		c.add("sets", "in the %v set, but it does not serve", e.Sets)
	}
	if e.Sets.Has(LocalSet) && !e.Local {
		c.add("sets", "in the Local set, but not local")
	}
	used := port.Routes(e.Family()).Sets()
	if unused := e.Sets &^ used; unused != 0 && !c.service.Headless {
		c.add("sets", "in the %v set, which no route uses", unused)
	}
	c.usable[portFamily{e.Port, e.Family()}] |= e.Sets
}

// port checks what the routes of a port say of empty sets.
func (c *checker) port(port ServicePort, f Family) {
	routes, name := port.Routes(f), c.service.PortName(port)
	c.object = fmt.Sprintf("service port %v", name)
	sets := c.usable[portFamily{name, f}]
	// No endpoint is usable anywhere: the cluster set, where it is used, has the last word.
	nothing := routes.Sets().Has(ClusterSet) && !sets.Has(ClusterSet)
	if nothing && sets != 0 {
		c.add("routes"+f.String(), "the Cluster set is empty, and the %v set is not", sets)
	}
	for _, k := range []struct {
		name  string
		route Route
	}{
		{"clusterIP", routes.ClusterIP}, {"external", routes.External},
		{"externalFromPod", routes.ExternalFromPod}, {"externalFromNode", routes.ExternalFromNode},
	} {
		field := fmt.Sprintf("routes%v.%s", f, k.name)
		switch {
		case k.route.IsZero():
		case k.route.Endpoints == ClusterSet && k.route.Empty != Reject:
			c.add(field, "drops where no endpoint is usable anywhere")
		case k.route.Endpoints != LocalSet:
		case nothing && k.route.Empty != Reject:
			c.add(field, "drops, and no endpoint is usable anywhere")
		case sets != 0 && k.route.Empty != Drop:
			c.add(field, "refuses as if no endpoint were usable anywhere")
		}
	}
}
