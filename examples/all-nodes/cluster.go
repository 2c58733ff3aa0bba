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
	classes map[localstate.Class]*class
	classOf map[string]*class                       // by node
	written map[string]map[model.ServiceName]string // load balancers as text, by group or node
	members map[string]string                       // each node's group and variables, as text
}

// newCluster returns a cluster without objects.
func newCluster(ctx context.Context, db database) (*cluster, error) {
	base, err := localstate.New(ctx, localstate.Options{}, localstate.ClusterOptions{EndpointDetails: true})
	return &cluster{db: db, base: base, nodes: map[string]*localstate.NodeTracker{},
		classes: map[localstate.Class]*class{}, classOf: map[string]*class{},
		written: map[string]map[model.ServiceName]string{}, members: map[string]string{}}, err
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
			c.clear(node.Name)
			c.join(node.Name)
		case isNode:
			if c.nodes[node.Name] == nil { // the options cannot be invalid
				c.nodes[node.Name], _ = localstate.NewNodeTracker(context.Background(), nodeOptions(node.Name))
			}
			c.nodes[node.Name].Set(node)
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
// a node that joins a class, or has more addresses than the others, it writes all services. Nodes join a group once its
// load balancers are written.
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
	for class := range c.countAddresses() {
		joined[class] = true
	}
	c.base.Discard() // it only serves to create classes
	for _, class := range c.classes {
		services := class.state.PendingServices()
		class.state.Flush(class.full)
		_ = class.full.Sync(context.Background()) // only takes the snapshot
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
	for name := range c.nodes {
		c.join(name)
	}
	c.dropClasses()
}

// countAddresses returns the classes whose number of addresses has changed.
func (c *cluster) countAddresses() map[*class]bool {
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
	changed := map[*class]bool{}
	for class, most := range now {
		changed[class] = class.addresses != most
		class.addresses = most
	}
	maps.DeleteFunc(changed, func(_ *class, is bool) bool { return !is })
	return changed
}

// join tells the database the group and the variables of a node, unless it has them.
func (c *cluster) join(node string) {
	group, vars := "", map[string]string(nil)
	if c.classOf[node] != nil {
		group, vars = c.classOf[node].where(), variables(c.nodes[node].Node(nil))
	}
	if text := fmt.Sprint(group, vars); c.members[node] != text {
		c.members[node] = text
		c.db.join(node, group, vars)
	}
	if group == "" {
		delete(c.members, node)
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

// publishService writes a service for a class, and for those of its nodes whose traffic differs.
func (c *cluster) publishService(class *class, service model.ServiceName) {
	entry := class.snapshot.Service(service)
	var shared *balancers
	if entry != nil {
		shared = balance(entry, entry.Service, nil, class.key, class.addresses)
	}
	c.put(class.where(), service, shared)
	parts := class.state.NodeParts(service, func(node string) bool { return c.classOf[node] == class })
	for node, of := range c.classOf {
		if of != class {
			continue
		}
		var own *balancers
		if part := parts[node]; part != nil && entry != nil {
			own = balance(entry, part.Service(entry.Service, c.nodes[node].Node(nil)), part, class.key, class.addresses)
		}
		if own.String() == shared.String() {
			own = nil
		}
		c.put(node, service, own)
	}
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
