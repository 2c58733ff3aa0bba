package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// database stores the load balancers of all nodes.
type database interface {
	// write replaces a service's load balancers: those of a group of nodes, or those of one node, which it has in place of
	// its group's. nil deletes them.
	write(where string, service model.ServiceName, b *balancers)
	// join puts a node into a group, and sets its variables. The group of a deleted node is "".
	join(node, group string, variables map[string]string)
}

// cluster computes the load balancers of all nodes. It implements watch.Handler.
type cluster struct {
	db database

	mu      sync.Mutex
	synced  bool
	base    *localstate.State // has all objects
	nodes   map[string]*localstate.NodeTracker
	changed map[string]bool // nodes that changed since the last publish
	classes map[localstate.Class]*class
	classOf map[string]*class                       // by node
	written map[string]map[model.ServiceName]string // load balancers as text, by group or node
	members map[string]member
}

// newCluster returns a cluster without objects.
func newCluster(ctx context.Context, db database) (*cluster, error) {
	base, err := localstate.New(ctx, localstate.Options{}, localstate.ClusterOptions{EndpointDetails: true})
	return &cluster{db: db, base: base, nodes: map[string]*localstate.NodeTracker{},
		classes: map[localstate.Class]*class{}, classOf: map[string]*class{},
		written: map[string]map[model.ServiceName]string{}, members: map[string]member{}, changed: map[string]bool{}}, err
}

// member is what the database knows about a node.
type member struct {
	group string
	vars  map[string]string
}

// nodeOptions returns the options of each node. A switch recognizes the traffic of pods as a bridge does.
func nodeOptions(name string) localstate.Options {
	return localstate.Options{NodeName: name, DetectLocal: localstate.DetectLocal{Bridge: "br-int"}}
}

// class is a group of nodes with the same services and endpoints, except for each node's own part.
type class struct {
	key      localstate.Class
	state    *localstate.State
	full     *sink.FullState
	snapshot *sink.Snapshot
	// addresses is the maximum number of addresses of its nodes in each family.
	addresses model.PerFamily[int]
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
			c.changed[node.Name] = true
		case isNode:
			if c.nodes[node.Name] == nil { // the options cannot be invalid
				c.nodes[node.Name], _ = localstate.NewNodeTracker(context.Background(), nodeOptions(node.Name))
			}
			c.nodes[node.Name].Set(node)
			c.changed[node.Name] = true
		default:
			_, _ = c.base.Apply(change.Object, change.Deleted) // invalid input is logged
			for _, class := range c.classes {
				_, _ = class.state.Apply(change.Object, change.Deleted)
			}
		}
	}
	c.publish()
}

// Synced implements watch.Handler. Nothing is written before all objects are known.
func (c *cluster) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = true
	c.publish()
}

// publish writes what has changed. It computes a changed service once per class, with one pass over its endpoints; for
// a node that joins a class, or whose addresses change, it writes all services. At any time each node has a service's
// load balancers either as they were before or as they are afterwards: so a node joins a group once its load balancers
// are written, and loses its own ones that the group's replace after that.
func (c *cluster) publish() {
	if !c.synced {
		return
	}
	rewrite := c.placeNodes()
	c.base.Discard() // it only serves to create classes
	replaced := map[string][]model.ServiceName{}
	for _, class := range c.classes {
		services := class.state.PendingServices()
		class.state.Flush(class.full)
		_ = class.full.Sync(context.Background()) // only takes the snapshot
		if rewrite[class] {
			for entry := range class.snapshot.Services() {
				services = append(services, entry.Service.Name)
			}
		}
		slices.SortFunc(services, model.ServiceName.Compare)
		for _, service := range slices.Compact(services) {
			for _, node := range c.publishService(class, service) {
				replaced[node] = append(replaced[node], service)
			}
		}
	}
	for name := range c.changed {
		c.join(name)
	}
	for node, services := range replaced {
		for _, service := range services {
			c.put(node, service, nil)
		}
	}
	if len(c.changed) > 0 {
		c.dropClasses()
	}
	clear(c.changed)
}

// placeNodes finds the class of each node that changed. It returns the classes whose services have to be written again.
func (c *cluster) placeNodes() (rewrite map[*class]bool) {
	rewrite = map[*class]bool{}
	for name := range c.changed {
		tracker := c.nodes[name]
		if tracker == nil {
			continue // it was deleted
		}
		key := tracker.Class()
		if c.classes[key] == nil {
			class := &class{key: key, state: c.base.ForClass(key)}
			class.full = sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
				class.snapshot = s
				return nil
			})
			c.classes[key] = class
		}
		if c.classOf[name] != c.classes[key] || !maps.Equal(c.members[name].vars, variables(tracker.Node(nil))) {
			c.classOf[name] = c.classes[key]
			rewrite[c.classes[key]] = true
		}
	}
	if len(c.changed) > 0 {
		c.countAddresses(rewrite)
	}
	return rewrite
}

// countAddresses counts the addresses of the nodes, and adds the classes where the maximum has changed.
func (c *cluster) countAddresses(changed map[*class]bool) {
	now := map[*class]model.PerFamily[int]{}
	for name, tracker := range c.nodes {
		most := now[c.classOf[name]]
		for _, f := range model.Families() {
			n := 0
			for _, ip := range tracker.Node(nil).IPs {
				if model.FamilyOf(ip) == f {
					n++
				}
			}
			*most.At(f) = max(*most.At(f), n)
		}
		now[c.classOf[name]] = most
	}
	for class, most := range now {
		if class.addresses != most {
			class.addresses, changed[class] = most, true
		}
	}
}

// join tells the database the group and the variables of a node, unless it has them.
func (c *cluster) join(node string) {
	if c.nodes[node] == nil {
		delete(c.members, node)
		c.db.join(node, "", nil)
		c.clear(node)
		return
	}
	now := member{c.classOf[node].where(), variables(c.nodes[node].Node(nil))}
	if was := c.members[node]; was.group != now.group || !maps.Equal(was.vars, now.vars) {
		c.members[node] = now
		c.db.join(node, now.group, now.vars)
	}
}

// dropClasses drops classes without nodes, once the last node has joined another group.
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

// where returns the name of a group of nodes in the database.
func (c *class) where() string { return fmt.Sprintf("zone %q", c.key.Zone) }

// clear deletes everything written for a group or a node.
func (c *cluster) clear(where string) {
	for service := range c.written[where] {
		c.put(where, service, nil)
	}
	delete(c.written, where)
}

// publishService writes a service for a class, and for those of its nodes whose traffic differs. It returns the other
// nodes that still have their own load balancers of it.
func (c *cluster) publishService(class *class, service model.ServiceName) (replaced []string) {
	entry := class.snapshot.Service(service)
	var shared *balancers
	if entry != nil {
		shared = balance(entry, entry.Service, nil, nil, class.key, class.addresses)
	}
	parts := class.state.NodeParts(service, func(node string) bool { return c.classOf[node] == class })
	for node, of := range c.classOf {
		if of != class {
			continue
		}
		if part := parts[node]; entry != nil && (part != nil || stickyNodePorts(entry.Service)) {
			n := c.nodes[node].Node(nil)
			own := balance(entry, part.Service(entry.Service, n), n, part, class.key, class.addresses)
			if own.String() != shared.String() {
				c.put(node, service, own) // before the group's change
				continue
			}
		}
		if c.written[node][service] != "" {
			replaced = append(replaced, node)
		}
	}
	c.put(class.where(), service, shared)
	return replaced
}

// put writes load balancers unless they are written already.
func (c *cluster) put(where string, service model.ServiceName, b *balancers) {
	text := b.String()
	if c.written[where][service] == text {
		return
	}
	if c.written[where] == nil {
		c.written[where] = map[model.ServiceName]string{}
	}
	if c.written[where][service] = text; b == nil {
		delete(c.written[where], service)
	}
	c.db.write(where, service, b)
}

// combine returns the endpoints of a port: those of the class, overlaid with the node's own part.
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
