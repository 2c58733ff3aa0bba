package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// cluster computes the load balancers of all nodes. It implements watch.Handler.
type cluster struct {
	// write writes the load balancers of a service to the database: for a group of nodes, or for one node in place of
	// its group's. Without rules they are deleted.
	write func(where string, service model.ServiceName, rules string)

	mu      sync.Mutex
	synced  bool
	base    *localstate.State // knows all objects
	nodes   map[string]*localstate.NodeTracker
	classes map[localstate.Class]*class
	classOf map[string]*class                       // by node
	written map[string]map[model.ServiceName]string // by group and node
}

// class is a group of nodes that have the same services and endpoints, but for what only one of them has.
type class struct {
	key      localstate.Class
	state    *localstate.State
	full     *sink.FullState
	snapshot *sink.Snapshot
}

// Update implements watch.Handler.
func (c *cluster) Update(changes ...watch.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		node, isNode := change.Object.(*corev1.Node)
		switch {
		case isNode && change.Deleted:
			delete(c.nodes, node.Name)
			delete(c.classOf, node.Name)
			c.clear(node.Name)
		case isNode:
			if c.nodes[node.Name] == nil { // there are no options that could be wrong
				c.nodes[node.Name], _ = localstate.NewNodeTracker(context.Background(),
					localstate.Options{NodeName: node.Name})
			}
			c.nodes[node.Name].Set(node)
		default:
			_, _ = c.base.Apply(change.Object, change.Deleted) // bad input is logged
			for _, class := range c.classes {
				_, _ = class.state.Apply(change.Object, change.Deleted)
			}
		}
	}
	c.publish()
}

// Synced implements watch.Handler: nothing is written before everything is known.
func (c *cluster) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = true
	c.publish()
}

// publish writes what is different by now. A service that changed is computed once for each class, with one look at
// each of its endpoints; for a node that joins a class, all services are.
func (c *cluster) publish() {
	if !c.synced {
		return
	}
	joined := map[*class]bool{}
	for name, tracker := range c.nodes {
		key := tracker.Class()
		if c.classes[key] == nil {
			class := &class{key: key, state: c.base.ForClass(key)}
			class.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				class.snapshot = s
				return nil
			})
			c.classes[key] = class
		}
		if c.classOf[name] != c.classes[key] {
			c.classOf[name] = c.classes[key]
			joined[c.classes[key]] = true
		}
	}
	c.base.Discard() // it only serves to make classes
	for _, class := range c.classes {
		services := class.state.PendingServices()
		class.state.Flush(class.full)
		_ = class.full.Sync(context.Background()) // it only takes the snapshot
		if joined[class] {
			for entry := range class.snapshot.Services() {
				services = append(services, entry.Service.Name)
			}
		}
		slices.SortFunc(services, model.ServiceName.Compare)
		for _, service := range slices.Compact(services) {
			c.publishService(class, service)
		}
	}
	c.dropClasses()
}

// dropClasses drops the classes whose last node has left, once that node has its load balancers elsewhere.
func (c *cluster) dropClasses() {
	used := map[*class]bool{}
	for _, class := range c.classOf {
		used[class] = true
	}
	for key, class := range c.classes {
		if !used[class] {
			c.clear(class.where())
			delete(c.classes, key)
		}
	}
}

// where is the name of the group of nodes in the database.
func (c *class) where() string { return fmt.Sprintf("zone %q", c.key.Zone) }

// clear deletes what is written for a group or a node.
func (c *cluster) clear(where string) {
	for service := range c.written[where] {
		c.put(where, service, "")
	}
	delete(c.written, where)
}

// publishService writes a service for a class, and for the nodes of the class whose traffic goes elsewhere.
func (c *cluster) publishService(class *class, service model.ServiceName) {
	entry := class.snapshot.Service(service)
	shared := rules(entry, nil, class.key)
	c.put(class.where(), service, shared)
	parts := class.state.NodeParts(service, func(node string) bool { return c.classOf[node] == class })
	for node, of := range c.classOf {
		own := ""
		if of != class {
			continue
		} else if parts[node] != nil {
			own = rules(entry, parts[node], class.key)
		}
		if own == shared {
			own = ""
		}
		c.put(node, service, own)
	}
}

// put writes what is not written yet.
func (c *cluster) put(where string, service model.ServiceName, rules string) {
	if c.written[where][service] == rules {
		return
	}
	if c.written[where] == nil {
		c.written[where] = map[model.ServiceName]string{}
	}
	if c.written[where][service] = rules; rules == "" {
		delete(c.written[where], service)
	}
	c.write(where, service, rules)
}

// rules are the load balancers of a service, a line for each address and port, as they are for all nodes of a class or,
// with its part, for one of them. A service that is gone has none.
func rules(entry *sink.ServiceEntry, part *localstate.NodePart, class localstate.Class) string {
	var b strings.Builder
	if entry == nil {
		return ""
	}
	s := entry.Service
	for _, port := range s.Ports {
		endpoints := combine(entry, s.PortName(port), part, class)
		line := func(ip netip.Addr, route model.Route) {
			targets := route.Empty.String()
			for _, e := range endpoints {
				if e.Family() == model.FamilyOf(ip) && e.Sets.Has(route.Endpoints) {
					targets = strings.TrimPrefix(targets+" "+e.Target.String(), route.Empty.String()+" ")
				}
			}
			fmt.Fprintf(&b, "\n  %v/%v -> %s", netip.AddrPortFrom(ip, port.Port), port.Protocol, targets)
		}
		for _, ip := range s.ClusterIPs {
			line(ip, port.Routes(model.FamilyOf(ip)).ClusterIP)
		}
		for _, ip := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
			line(ip, port.Routes(model.FamilyOf(ip)).External)
		}
	}
	return b.String()
}

// combine returns the endpoints of a port: those of the class, overlaid with what one node has of its own.
func combine(entry *sink.ServiceEntry, port model.PortName, part *localstate.NodePart,
	class localstate.Class) (all []*model.Endpoint) {
	byKey := map[model.EndpointKey]*model.Endpoint{}
	for _, e := range entry.PortEndpoints(port.Port, port.Protocol) {
		byKey[e.Key()] = part.Endpoint(class, e.Key(), e)
	}
	if part != nil {
		for _, e := range part.Endpoints {
			if e.Port == port {
				byKey[e.Key()] = e
			}
		}
	}
	for _, e := range byKey {
		if e != nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	return all
}
