package localstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Explanation says what is known about a service, and why each endpoint is or is not used on this node. It reflects the
// currently known objects, and so what the next Flush hands over.
type Explanation struct {
	// Service is the requested name. It is possible that only slices exist for it, and no Service.
	Service model.ServiceName `json:"service"`
	// Skipped says why the service is not served; it is empty if it is.
	Skipped string `json:"skipped,omitempty"`
	// Ports are the service's ports, in each of its families.
	Ports []PortExplanation `json:"ports,omitempty"`
	// UnmatchedPorts are ports that slices of the service have, but the service does not. Ports match by name and
	// protocol.
	UnmatchedPorts []string `json:"unmatchedPorts,omitempty"`
	// Ignored lists the slices of the service that are not used, such as those of type FQDN, and the unused parts of
	// others, such as addresses that do not parse. Each entry gives a count, a reason and the names of slices.
	Ignored []string `json:"ignored,omitempty"`
	// Held: the endpoints of a port are the last usable ones (S66); see Held of [PortExplanation].
	Held bool `json:"held,omitempty"`
}

// PortExplanation is about one port of a service in one family.
type PortExplanation struct {
	// Port is the name of the port, and Family is "IPv4" or "IPv6".
	Port   model.PortName `json:"port"`
	Family string         `json:"family"`
	// Routes say what happens to traffic to the port, as handed over to sinks.
	Routes model.Routes `json:"routes"`
	// TooManyEndpoints: the service or its namespace exceeds a limit, so this port gets no endpoints (S60) and Endpoints
	// is empty. This reflects the last Flush.
	TooManyEndpoints bool `json:"tooManyEndpoints,omitempty"`
	// Held: no slice has a usable endpoint for the port, so the last ones stay (S66).
	Held bool `json:"held,omitempty"`
	// Topology says which hints select the endpoints, or why no hints do.
	Topology string `json:"topology"`
	// Endpoints are all known endpoints of the port, used or not, in order of target.
	Endpoints []EndpointExplanation `json:"endpoints"`
}

// EndpointExplanation is about one endpoint of one port: an entry of a slice.
type EndpointExplanation struct {
	// Target is the address, and the port that the slice has for this service port.
	Target netip.AddrPort `json:"target"`
	// EndpointSlice is the name of the slice, in the namespace of the service.
	EndpointSlice string `json:"endpointSlice"`
	// Node is the node that the slice names, "" if it names none.
	Node string `json:"node,omitempty"`
	// TargetRef is the object behind the endpoint, with ClusterOptions.EndpointDetails.
	TargetRef model.TargetRef `json:"targetRef,omitzero"`
	// Ready, Serving and Terminating are the conditions, with Kubernetes' defaults for those that the slice leaves out.
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`
	// Sets are the endpoint sets that the endpoint is in. An entry that is in none gets no new traffic.
	Sets model.EndpointSets `json:"sets"`
	// Reason says why it is in exactly these sets.
	Reason Reason `json:"reason"`
	// Text is the reason in words.
	Text string `json:"text"`
}

// Reason is why an endpoint is or is not used.
type Reason string

const (
	// Reasons to use an endpoint.
	ReasonReady      Reason = "Ready"      // it is ready
	ReasonNodeHint   Reason = "NodeHint"   // it is ready and a hint names this node
	ReasonZoneHint   Reason = "ZoneHint"   // it is ready and a hint names this node's zone
	ReasonLastResort Reason = "LastResort" // it still serves while it terminates, and none is ready
	ReasonLocal      Reason = "Local"      // for local traffic only: it is on this node, but not in the cluster set

	// Reasons not to use it.
	ReasonNotReady    Reason = "NotReady"    // it is neither ready nor terminating
	ReasonNotServing  Reason = "NotServing"  // it is terminating and does not serve any more
	ReasonDraining    Reason = "Draining"    // it is terminating, and others are ready
	ReasonOtherNode   Reason = "OtherNode"   // its hints name other nodes
	ReasonOtherZone   Reason = "OtherZone"   // its hints name other zones
	ReasonNotLocal    Reason = "NotLocal"    // all traffic of the port stays on the node, and it is on another
	ReasonDuplicate   Reason = "Duplicate"   // another entry has the same target and is preferred
	ReasonUnknownNode Reason = "UnknownNode" // as NotLocal, except that the slice names no node
)

// Explain returns what is known about a service. It returns false if neither the Service nor a slice of it is known.
func (s *State) Explain(name model.ServiceName) (*Explanation, bool) {
	explain, known := s.ExplainLater(name)
	if !known {
		return nil, false
	}
	return explain(), true
}

// ExplainLater is [State.Explain] for callers that guard the State by a lock. It only captures what is known about the
// service, which is cheap. The function that it returns computes the explanation, which takes longer for a service with
// many endpoints. That function may be called without the lock, from any goroutine, even after the State has changed.
func (s *State) ExplainLater(name model.ServiceName) (explain func() *Explanation, known bool) {
	svc, skipped := s.services[name], s.skipped[name]
	if svc == nil {
		return func() *Explanation { return &Explanation{Service: name, Skipped: skipped} }, skipped != ""
	}
	// Slices, the node and the fields of a Service are replaced and never written to.
	then := &State{opts: s.opts, families: s.families, node: nodeIntake{model: s.node.model}}
	of := &service{name: name, slices: slices.Clone(svc.slices)}
	if svc.intake != nil {
		intake := *svc.intake
		of.intake = &intake
	}
	var refused []bool
	var ignored []ignoredSlice
	if of.intake != nil {
		refused, ignored = s.limits.refused(svc), s.ignoredOf(name)
	}
	var held map[heldPort][]*sliceIntake
	if h := s.held[svc]; h != nil {
		held = h.last
		ignored = append(ignored, h.ignored(name)...)
		of.nameSlicesAsObjects()
	}
	return func() *Explanation {
		e := then.explain(of, skipped, refused, ignored)
		e.markHeld(held)
		return e
	}, true
}

func (s *State) explain(svc *service, skipped string, refused []bool, ignored []ignoredSlice) *Explanation {
	e := &Explanation{Service: svc.name, Skipped: skipped}
	if svc.intake == nil {
		if e.Skipped == "" {
			e.Skipped = s.whyNoService()
		}
		e.Ignored = svc.invalidAddresses()
		return e
	}
	e.Ignored = append(svc.ignoredParts(ignored), svc.invalidAddresses()...)
	known := map[model.PortName]struct{}{}
	for _, p := range svc.intake.fields.Ports {
		known[svc.intake.fields.PortName(p)] = struct{}{}
	}
	for _, slice := range svc.slices {
		for _, p := range slice.ports {
			if _, ok := known[model.PortName{Service: svc.name, Port: p.name, Protocol: p.protocol}]; !ok {
				unmatched := fmt.Sprintf("%q %d/%v in slice %s", p.name, p.number, p.protocol, slice.name)
				e.UnmatchedPorts = append(e.UnmatchedPorts, unmatched)
			}
		}
	}
	var all model.PerFamily[entries]
	for _, f := range s.families {
		all.At(f).addAll(svc, f)
	}
	var none entries
	for i, port := range svc.intake.fields.Ports {
		for _, f := range s.families {
			switch {
			case !svc.intake.families.Has(f):
			case refused != nil && refused[i]:
				p := s.explainPort(svc, port, f, &none)
				p.TooManyEndpoints = true
				e.Ports = append(e.Ports, p)
			default:
				e.Ports = append(e.Ports, s.explainPort(svc, port, f, all.At(f)))
			}
		}
	}
	return e
}

// whyNoService says why slices may exist without a Service: watch leaves out Services of other proxies, but not their
// slices, unless these are headless (S1).
func (s *State) whyNoService() string {
	otherProxy := "names another proxy"
	if s.opts.ServiceProxyName == AllServiceProxies {
		return "there are slices, but no Service: it does not exist, or is headless"
	} else if s.opts.ServiceProxyName != "" {
		otherProxy = fmt.Sprintf("is not %q", s.opts.ServiceProxyName)
	}
	return fmt.Sprintf("there are slices, but no Service for this proxy: it does not exist, is headless, or its "+
		"label %s %s",
		labelServiceProxyName, otherProxy)
}

func (s *State) explainPort(svc *service, port model.ServicePort, f model.Family, all *entries) PortExplanation {
	p := s.familyPort(svc, &port, f)
	x := explainer{candidates: all.candidates(nil, all.forPort(port.Name, port.Protocol)), opts: &s.opts}
	p.count(&x.counts, x.candidates, 1)
	routes, rules := p.decide(&x.counts)
	x.rules = rules
	e := PortExplanation{
		Port:      p.name,
		Family:    f.String(),
		Routes:    routes,
		Topology:  x.topology(),
		Endpoints: []EndpointExplanation{},
	}
	for i := range x.candidates {
		c := &x.candidates[i]
		sets := x.rules.sets(c)
		value := c.model(e.Port, sets)
		reason, text := x.explain(c, sets)
		e.Endpoints = append(e.Endpoints, EndpointExplanation{
			Target: c.target, EndpointSlice: c.slice.name, Node: value.Node, TargetRef: value.Details.Get().TargetRef,
			Ready: value.Ready, Serving: value.Serving, Terminating: value.Terminating,
			Sets: sets, Reason: reason, Text: text,
		})
	}
	return e
}

// explainer explains the candidates of a port in one family.
type explainer struct {
	candidates []candidate
	counts     counts
	rules      rules
	opts       *options
}

// topology says which hints are used, or why none are (S22).
func (x *explainer) topology() string {
	n, r := &x.counts, &x.rules
	switch {
	case r.headless:
		return "none: the service is headless"
	case r.topology == topologyNode:
		return fmt.Sprintf("node hints: endpoints for node %s", r.nodeName)
	case r.topology == topologyZone:
		return fmt.Sprintf("zone hints: endpoints for %s", r.zone)
	case n.ready == 0:
		return "none: no endpoint is ready"
	case n.withoutNodeHint == n.ready && n.withoutZoneHint == n.ready:
		return "none: no endpoint has a hint"
	}
	var why []string
	if n.withoutNodeHint < n.ready {
		why = append(why, x.whyNot("node", x.opts.NoNodeHints, n.withoutNodeHint, r.nodeName))
	}
	if n.withoutZoneHint < n.ready {
		why = append(why, x.whyNot("zone", x.opts.NoZoneHints, n.withoutZoneHint, r.zone))
	}
	return "none: " + strings.Join(why, "; ")
}

func (x *explainer) whyNot(kind string, off bool, without int32, own string) string {
	switch {
	case off:
		return kind + " hints are switched off"
	case without > 0:
		return fmt.Sprintf("%d of %d ready endpoints have no %s hint", without, x.counts.ready, kind)
	case own == "":
		return fmt.Sprintf("this node's %s is unknown", kind)
	}
	return fmt.Sprintf("no %s hint of a ready endpoint names %s", kind, own)
}

// explain says why a candidate is in these sets.
func (x *explainer) explain(c *candidate, sets model.EndpointSets) (Reason, string) {
	flags, place, inUse := c.flags, c.place(), x.rules.inUse
	switch {
	case c.loses:
		return ReasonDuplicate, "another entry with the same address and port is preferred"
	case !flags.has(flagReady) && !flags.has(flagTerminating):
		return ReasonNotReady, "not ready"
	case !flags.has(flagReady) && !flags.has(flagServing):
		return ReasonNotServing, "terminating and not serving"
	case sets.Has(model.ClusterSet) && flags.draining():
		return ReasonLastResort, "serving while it terminates, and no endpoint is ready"
	case sets.Has(model.ClusterSet) && x.rules.topology == topologyNode:
		return ReasonNodeHint, "node hint names this node"
	case sets.Has(model.ClusterSet) && x.rules.topology == topologyZone:
		return ReasonZoneHint, "zone hint names this node's zone"
	case sets.Has(model.ClusterSet):
		return ReasonReady, "ready"
	}

	// Ready or draining, but not in the cluster set.
	reason, text := ReasonReady, "ready"
	switch {
	case flags.draining() && x.rules.headless:
		reason, text = ReasonDraining, "terminating, and the service is headless"
	case flags.draining() && x.counts.ready > 0 && !(sets.Has(model.LocalSet) && !inUse.Has(model.ClusterSet)):
		reason, text = ReasonDraining, "terminating, and others are ready"
	case flags.draining():
		reason, text = ReasonLastResort, "serving while it terminates, and no endpoint on this node is ready"
	case !inUse.Has(model.ClusterSet):
	case x.rules.topology == topologyNode:
		reason, text = ReasonOtherNode, "node hint names "+hintList(place.nodeHints)
	case x.rules.topology == topologyZone:
		reason, text = ReasonOtherZone, "zone hint names "+hintList(place.zoneHints)
	}
	switch {
	case sets.Has(model.LocalSet) && inUse.Has(model.ClusterSet):
		return ReasonLocal, "on this node, for local traffic only: " + text
	case sets.Has(model.LocalSet):
		return reason, text + ", on this node"
	case inUse.Has(model.ClusterSet):
		return reason, text
	case flags.draining() && flags.has(flagLocal):
		return ReasonDraining, "terminating, and others on this node are ready"
	case place.node == "":
		return ReasonUnknownNode, "its node is unknown, and traffic stays on this node"
	}
	return ReasonNotLocal, "on node " + place.node + ", and traffic stays on this node"
}

func hintList(names string) string {
	return strings.ReplaceAll(names, hintSeparator, ", ")
}

// String returns the explanation as text, a line for each endpoint.
func (e *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "service %v\n", e.Service)
	if e.Skipped != "" {
		fmt.Fprintf(&b, "  skipped: %s\n", e.Skipped)
	}
	for _, p := range e.Ports {
		fmt.Fprintf(&b, "  port %q %v, %s\n    routes: %v\n    topology: %s\n", p.Port.Port, p.Port.Protocol, p.Family,
			p.Routes, p.Topology)
		if p.Held {
			b.WriteString("    held: no slice has a usable endpoint, so the last ones stay\n")
		}
		switch {
		case p.TooManyEndpoints:
			b.WriteString("    not served: the service or its namespace asks for too many endpoints\n")
		case len(p.Endpoints) == 0:
			b.WriteString("    no endpoints\n")
		}
		for _, ep := range p.Endpoints {
			fmt.Fprintf(&b, "    %-22v %-14s %s", ep.Target, ep.Sets, ep.Text)
			if ep.Node != "" {
				fmt.Fprintf(&b, " (node %s, slice %s)", ep.Node, ep.EndpointSlice)
			} else {
				fmt.Fprintf(&b, " (slice %s)", ep.EndpointSlice)
			}
			b.WriteString("\n")
		}
	}
	for _, p := range slices.Sorted(slices.Values(e.UnmatchedPorts)) {
		fmt.Fprintf(&b, "  port %s matches no port of the service\n", p)
	}
	for _, text := range e.Ignored {
		fmt.Fprintf(&b, "  ignored: %s\n", text)
	}
	return b.String()
}
