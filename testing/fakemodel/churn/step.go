package churn

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Step is one thing that happens in a cluster.
type Step struct {
	// What describes it for people, for example "svc-3-bz8kfwvq2-x7c2m drains".
	What string
	// Changes are the objects that it changes, at least one.
	Changes []watch.Change
}

// action is a kind of event. It returns no changes if it cannot happen now.
type action struct {
	weight int
	run    func(c *Cluster) Step
}

// actions returns the kinds of events, with their frequencies.
func actions() []action {
	return []action{
		{40, (*Cluster).advance},
		{18, (*Cluster).replacePod},
		{10, (*Cluster).scale},
		{10, (*Cluster).policy},
		{5, (*Cluster).unready},
		{5, (*Cluster).touch},
		{3, (*Cluster).moveBetweenSlices},
		{3, (*Cluster).createService},
		{3, (*Cluster).deleteService},
		{2, (*Cluster).ports},
		{1, (*Cluster).moveNode},
	}
}

// Step simulates one event.
func (c *Cluster) Step() Step {
	list := actions()
	total := 0
	for _, a := range list {
		total += a.weight
	}
	for {
		n := c.random.IntN(total)
		i := 0
		for n >= list[i].weight {
			n -= list[i].weight
			i++
		}
		if step := list[i].run(c); len(step.Changes) > 0 {
			return step
		}
	}
}

// step returns a Step with objects that exist.
func step(changes []watch.Change, what string, args ...any) Step {
	return Step{What: fmt.Sprintf(what, args...), Changes: changes}
}

func set(objects ...metav1.Object) []watch.Change {
	var changes []watch.Change
	for _, object := range objects {
		changes = append(changes, watch.Change{Object: object})
	}
	return changes
}

// groupChanges returns the changes of the slices of groups, each group once.
func (c *Cluster) groupChanges(s *service, groups ...*group) []watch.Change {
	var changes []watch.Change
	for i, g := range groups {
		if slices.Contains(groups[:i], g) {
			continue
		}
		for _, slice := range c.slicesOf(s, g) {
			changes = append(changes, watch.Change{Object: slice, Deleted: !s.has(g)})
		}
	}
	return changes
}

// someService returns a random service, or nil.
func (c *Cluster) someService() *service {
	if len(c.services) == 0 {
		return nil
	}
	return c.services[c.random.IntN(len(c.services))]
}

// somePod returns a random pod of a service, or nil: one that is ready, if asked for.
func (c *Cluster) somePod(s *service, want phase) *pod {
	if s == nil {
		return nil
	}
	g := s.groups[c.random.IntN(len(s.groups))]
	if len(g.pods) == 0 {
		return nil
	}
	first := c.random.IntN(len(g.pods))
	for i := range g.pods {
		if p := g.pods[(first+i)%len(g.pods)]; p.phase == want {
			return p
		}
	}
	return nil
}

// advance takes a pod to its next phase: from starting to ready, or from draining to stopping and then to its removal.
func (c *Cluster) advance() Step {
	if len(c.unstable) == 0 {
		return Step{}
	}
	i := c.random.IntN(len(c.unstable))
	p := c.unstable[i]
	var what string
	switch p.phase {
	case starting:
		p.phase, what = ready, "becomes ready"
	case draining:
		p.phase, what = stopping, "serves no more"
	case stopping:
		c.removePod(p)
		what = "is gone"
	}
	if p.phase == ready || p.phase == gone {
		p.unstable = false
		c.unstable[i] = c.unstable[len(c.unstable)-1]
		c.unstable = c.unstable[:len(c.unstable)-1]
	}
	if what == "" {
		return Step{} // it went with its service
	}
	return step(c.groupChanges(p.service, p.group), "%s %s", p.name, what)
}

// replacePod starts a pod and lets another one drain: a step of a roll-out, or a move to another node.
func (c *Cluster) replacePod() Step {
	old := c.somePod(c.someService(), ready)
	if old == nil {
		return Step{}
	}
	s := old.service
	if c.random.IntN(5) == 0 {
		s.revision = c.text(9)
	}
	p := c.addPod(s)
	if p == nil {
		return Step{}
	}
	c.setPhase(p, starting)
	c.setPhase(old, draining)
	return step(c.groupChanges(s, p.group, old.group), "%s on %s starts, %s on %s drains", p.name, p.node.Name,
		old.name, old.node.Name)
}

// scale changes the number of a service's pods: usually by one, sometimes to 0 or to the original number.
func (c *Cluster) scale() Step {
	s := c.someService()
	if s == nil {
		return Step{}
	}
	before := s.replicas
	switch c.random.IntN(12) {
	case 0:
		s.replicas = 0
	case 1:
		s.replicas = c.opts.Endpoints
	case 2, 3, 4, 5, 6:
		s.replicas = max(0, s.replicas-1)
	default:
		s.replicas = min(2*c.opts.Endpoints, s.replicas+1)
	}
	changed := c.reconcile(s)
	return step(c.groupChanges(s, changed...), "%s is scaled from %d to %d", s.name, before, s.replicas)
}

// reconcile starts pods or lets them drain until the wanted number are ready or starting, and returns the groups that
// changed.
func (c *Cluster) reconcile(s *service) []*group {
	var changed []*group
	alive := 0
	for _, g := range slices.Clone(s.groups) {
		for _, p := range g.pods {
			if p.phase > ready {
				continue
			}
			if alive++; alive > s.replicas {
				c.setPhase(p, draining)
				changed = append(changed, g)
			}
		}
	}
	for ; alive < s.replicas; alive++ {
		p := c.addPod(s)
		if p == nil {
			break
		}
		c.setPhase(p, starting)
		changed = append(changed, p.group)
	}
	return changed
}

// policy changes a policy of a service.
func (c *Cluster) policy() Step {
	s := c.someService()
	if s == nil {
		return Step{}
	}
	all := func() []watch.Change { return append(set(s.object()), c.groupChanges(s, s.groups...)...) }
	before := all()
	what := c.changePolicy(s)
	var changes []watch.Change
	for i, change := range all() {
		if !reflect.DeepEqual(change, before[i]) { // hints, for example, show only where there are pods
			changes = append(changes, change)
		}
	}
	return step(changes, "%s: %s", s.name, what)
}

// changePolicy changes one field of a service, or of its endpoints' hints, and says which.
func (c *Cluster) changePolicy(s *service) string {
	switch c.random.IntN(7) {
	case 0:
		if s.slot < 2768 { // there are no more
			s.nodePort = toggled(s.nodePort, 30000+int32(s.slot))
		}
		return fmt.Sprintf("node port %d", s.nodePort)
	case 1:
		if s.externalIPs == nil && s.slot < 60000 {
			s.externalIPs = c.opts.externalIPs(2 * s.slot)
		} else {
			s.externalIPs = nil
		}
		return fmt.Sprintf("external IPs %v", s.externalIPs)
	case 2:
		if s.loadBalancerIPs == nil && s.slot < 60000 {
			s.loadBalancerIPs = c.opts.externalIPs(2*s.slot + 1)
			s.sourceRanges = [][]string{nil, {"10.128.0.0/9"}, {"0.0.0.0/0"},
				{"203.0.113.0/24", "fd00::/8"}}[c.random.IntN(4)]
		} else {
			s.loadBalancerIPs = nil
		}
		return fmt.Sprintf("VIPs %v for %v", s.loadBalancerIPs, s.sourceRanges)
	case 3:
		s.internalLocal = !s.internalLocal
		return fmt.Sprintf("internal policy Local: %v", s.internalLocal)
	case 4:
		s.externalLocal = !s.externalLocal
		return fmt.Sprintf("external policy Local: %v", s.externalLocal)
	case 5:
		s.affinity = toggled(s.affinity, 10800)
		return fmt.Sprintf("affinity %d s", s.affinity)
	}
	s.hints = (s.hints + 1) % (nodeHints + 1)
	return fmt.Sprintf("hints by %s", []string{"nothing", "zone", "node"}[s.hints])
}

func toggled(value, other int32) int32 {
	if value != 0 {
		return 0
	}
	return other
}

// ports adds the UDP port to a service, or removes it.
func (c *Cluster) ports() Step {
	s := c.someService()
	if s == nil {
		return Step{}
	}
	s.udp = !s.udp
	return step(append(set(s.object()), c.groupChanges(s, s.groups...)...), "%s: UDP port: %v", s.name, s.udp)
}

// unready lets a pod fail its probe.
func (c *Cluster) unready() Step {
	p := c.somePod(c.someService(), ready)
	if p == nil {
		return Step{}
	}
	c.setPhase(p, starting)
	return step(c.groupChanges(p.service, p.group), "%s is not ready", p.name)
}

// touch changes an annotation of a slice, which does not matter to a service proxy.
func (c *Cluster) touch() Step {
	s := c.someService()
	if s == nil {
		return Step{}
	}
	g := s.groups[c.random.IntN(len(s.groups))]
	g.touched++
	return step(c.groupChanges(s, g), "slice %d of %s is touched", g.number, s.name)
}

// moveBetweenSlices moves a pod from one slice to another, which may be new, or empties one that is small.
func (c *Cluster) moveBetweenSlices() Step {
	s := c.someService()
	if s == nil {
		return Step{}
	}
	p := c.somePod(s, ready)
	if p == nil {
		return Step{}
	}
	from := p.group
	var to *group
	for _, g := range s.groups {
		if g != from && len(g.pods) < groupSize {
			to = g
			break
		}
	}
	if to == nil {
		to = s.addGroup()
	}
	to.pods, p.group = append(to.pods, p), to
	from.remove(p)
	s.dropIfEmpty(from)
	return step(c.groupChanges(s, to, from), "%s moves from slice %d to slice %d", p.name, from.number, to.number)
}

// createService lets a service come, whose pods start.
func (c *Cluster) createService() Step {
	if len(c.services) >= c.opts.Services+c.margin() {
		return Step{}
	}
	s := c.addService(c.random.IntN(len(c.slots)), starting)
	return step(append(set(s.object()), c.groupChanges(s, s.groups...)...), "%s is created", s.name)
}

// deleteService lets a service go, its slices and pods with it.
func (c *Cluster) deleteService() Step {
	if len(c.services) <= c.opts.Services-c.margin() || len(c.services) == 0 {
		return Step{}
	}
	i := c.random.IntN(len(c.services))
	s := c.services[i]
	c.services[i] = c.services[len(c.services)-1]
	c.services = c.services[:len(c.services)-1]
	c.slots = append(c.slots, s.slot)

	groups := s.groups
	s.groups = nil
	for _, g := range groups {
		for _, p := range g.pods {
			p.phase = gone
			p.node.free = append(p.node.free, p.place)
		}
	}
	return step(append([]watch.Change{{Object: s.object(), Deleted: true}}, c.groupChanges(s, groups...)...),
		"%s is deleted", s.name)
}

// moveNode gives a node, often the first one, another zone.
func (c *Cluster) moveNode() Step {
	if len(c.zones) == 0 {
		return Step{}
	}
	n := c.nodes[0]
	if c.random.IntN(2) == 0 {
		n = c.nodes[c.random.IntN(len(c.nodes))]
	}
	zone := c.zones[c.random.IntN(len(c.zones))]
	if zone == n.Zone {
		return Step{}
	}
	n.Zone = zone
	return step(set(n.object()), "%s moves to zone %s", n.Name, zone)
}
