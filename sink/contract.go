package sink

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// contract keeps the state that results from the calls to a Sink, and records violations of Sink's contract.
type contract struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.ServiceName]map[model.EndpointKey]*model.Endpoint

	waves      int
	nodeSet    bool
	lastErr    error // of the last Sync
	retriable  bool  // a Sync has failed, and there has been no resync since
	violations []string
}

func (c *contract) violation(call any, format string, args ...any) {
	c.violations = append(c.violations, fmt.Sprintf("wave %d: %v: ", c.waves+1, call)+fmt.Sprintf(format, args...))
}

// call checks a single call and applies it to the state.
func (c *contract) call(call Call) {
	if c.services == nil {
		c.services = map[model.ServiceName]*model.Service{}
		c.endpoints = map[model.ServiceName]map[model.EndpointKey]*model.Endpoint{}
	}
	switch call.Op {
	case OpSetNode:
		c.setNode(call)
	case OpSetService:
		c.setService(call)
	case OpDeleteService:
		c.deleteService(call)
	case OpSetEndpoint:
		c.setEndpoint(call)
	case OpDeleteEndpoint:
		c.deleteEndpoint(call)
	case OpResyncFailed:
		if !c.retriable {
			c.violation(call, "nothing has failed")
		}
	}
}

func (c *contract) setNode(call Call) {
	switch {
	case call.Node == nil:
		c.violation(call, "the node is nil")
	case call.Node.Equal(c.node):
		c.violation(call, "changes nothing")
	}
	c.node, c.nodeSet = call.Node, true
}

func (c *contract) setService(call Call) {
	if call.Service == nil {
		c.violation(call, "the service is nil")
		return
	}
	if call.Service.Equal(c.services[call.Name]) {
		c.violation(call, "changes nothing")
	}
	for _, k := range c.sortedKeys(call.Name) {
		if call.Service.Port(k.Port.Port, k.Port.Protocol) == nil {
			c.violation(call, "has no port for an endpoint that is still set: %v", k)
		}
	}
	c.services[call.Name] = call.Service
}

func (c *contract) deleteService(call Call) {
	if c.services[call.Name] == nil {
		c.violation(call, "changes nothing")
	}
	for _, k := range c.sortedKeys(call.Name) {
		c.violation(call, "an endpoint is still set: %v", k)
	}
	delete(c.services, call.Name)
}

func (c *contract) setEndpoint(call Call) {
	if call.Endpoint == nil {
		c.violation(call, "the endpoint is nil")
		return
	}
	name := call.Key.Port.Service
	if s := c.services[name]; s == nil {
		c.violation(call, "its service is not set")
	} else if s.Port(call.Key.Port.Port, call.Key.Port.Protocol) == nil {
		c.violation(call, "its service has no such port")
	}
	if call.Endpoint.Equal(c.endpoints[name][call.Key]) {
		c.violation(call, "changes nothing")
	}
	if c.endpoints[name] == nil {
		c.endpoints[name] = map[model.EndpointKey]*model.Endpoint{}
	}
	c.endpoints[name][call.Key] = call.Endpoint
}

func (c *contract) deleteEndpoint(call Call) {
	name := call.Key.Port.Service
	if c.endpoints[name][call.Key] == nil {
		c.violation(call, "changes nothing")
	}
	delete(c.endpoints[name], call.Key)
	if len(c.endpoints[name]) == 0 {
		delete(c.endpoints, name)
	}
}

func (c *contract) sortedKeys(name model.ServiceName) []model.EndpointKey {
	return slices.SortedFunc(maps.Keys(c.endpoints[name]), model.EndpointKey.Compare)
}

// sync checks a wave as a whole.
func (c *contract) sync(w Wave) {
	if c.waves == 0 && !c.nodeSet {
		c.violation("Sync", "the first wave has no SetNode")
	}
	if FailedFamilies(c.lastErr) != 0 && len(w.Calls) == 0 {
		c.violation("Sync", "nothing new, and neither ResyncFailed nor ForceResync, after a Sync that failed")
	}
	resync := slices.ContainsFunc(w.Calls, Call.resyncs)
	c.checkOrder(w)
	c.retriable = w.Err != nil || c.retriable && !resync
	c.lastErr = w.Err
	c.waves++
}

// position is the place that a call should have in its wave. Positions increase strictly if the calls are in the order
// that Sink describes.
type position struct {
	phase int // the node, deleted services, others
	name  model.ServiceName
	step  int // within a service: endpoints to delete, the service, endpoints to set
	key   model.EndpointKey
}

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.phase, o.phase), p.name.Compare(o.name), cmp.Compare(p.step, o.step),
		p.key.Compare(o.key))
}

// checkOrder checks the order of a wave, and that it has no service or endpoint more than once.
func (c *contract) checkOrder(w Wave) {
	goes := map[model.ServiceName]bool{}
	for _, call := range w.Calls {
		if call.Op == OpDeleteService {
			goes[call.Name] = true
		}
	}
	seen := map[string]bool{}
	var lastPosition position
	var last string
	for _, call := range w.Calls {
		p := position{phase: 3}
		var object string
		switch call.Op {
		case OpForceResync, OpResyncFailed:
			continue
		case OpSetNode:
			p = position{phase: 1}
			object = "the node"
		case OpSetService, OpDeleteService:
			p.name, p.step = call.Name, 2
			object = "service " + call.Name.String()
		case OpSetEndpoint, OpDeleteEndpoint:
			p.name, p.key = call.Key.Port.Service, call.Key
			p.step = 1
			if call.Op == OpSetEndpoint {
				p.step = 3
			}
			object = "endpoint " + call.Key.String()
		}
		if goes[p.name] {
			p.phase = 2
		}
		if seen[object] {
			c.violation(call, "the second call in the wave for %s", object)
		} else if p.compare(lastPosition) <= 0 {
			c.violation(call, "comes after %s", last)
		}
		seen[object] = true
		lastPosition, last = p, call.String()
	}
}

// brokenInvariants checks the services that a wave affects, with their endpoints.
func (c *contract) brokenInvariants(w Wave) []string {
	touched := map[model.ServiceName]bool{}
	for _, call := range w.Calls {
		switch call.Op {
		case OpSetService:
			touched[call.Name] = true
		case OpSetEndpoint, OpDeleteEndpoint:
			touched[call.Key.Port.Service] = true
		}
	}
	var broken []string
	for _, name := range slices.SortedFunc(maps.Keys(touched), model.ServiceName.Compare) {
		s := c.services[name]
		if s == nil {
			continue // reported as a violation of the contract
		}
		if err := model.Check(s, c.sortedEndpoints(name)); err != nil {
			for line := range strings.Lines(err.Error()) {
				broken = append(broken, fmt.Sprintf("wave %d: %s", c.waves, strings.TrimSpace(line)))
			}
		}
	}
	return broken
}

// sortedEndpoints returns the endpoints of a service, in order.
func (c *contract) sortedEndpoints(name model.ServiceName) iter.Seq[*model.Endpoint] {
	return func(yield func(*model.Endpoint) bool) {
		for _, k := range c.sortedKeys(name) {
			if !yield(c.endpoints[name][k]) {
				return
			}
		}
	}
}
