package localstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Explanation says what is known of a service, and why each endpoint is or is not used on this node. It speaks of the
// objects as they are known now, which the next Flush hands over.
type Explanation struct {
	Service model.ServiceName `json:"service"`
	// Skipped says why nothing is done for the service; it is empty if something is.
	Skipped string `json:"skipped,omitempty"`
	// Ports are the service's ports, in each of its families.
	Ports []PortExplanation `json:"ports,omitempty"`
	// UnmatchedPorts are ports that slices of the service have and the service does not. Ports match by name and
	// protocol.
	UnmatchedPorts []string `json:"unmatchedPorts,omitempty"`
	// InvalidAddresses are what slices have in the place of an address, and is none.
	InvalidAddresses []string `json:"invalidAddresses,omitempty"`
}

// PortExplanation is about one port of a service in one family.
type PortExplanation struct {
	Port   model.PortName `json:"port"`
	Family string         `json:"family"` // "IPv4" or "IPv6"
	Routes model.Routes   `json:"routes"`
	// Topology says which hints select the endpoints, or why none do.
	Topology string `json:"topology"`
	// Endpoints are all that are known for the port, used or not, in order of target.
	Endpoints []EndpointExplanation `json:"endpoints"`
}

// EndpointExplanation is about one endpoint of one port: an entry of a slice.
type EndpointExplanation struct {
	Target        netip.AddrPort     `json:"target"`
	EndpointSlice string             `json:"endpointSlice"`
	Node          string             `json:"node,omitempty"`
	Ready         bool               `json:"ready"`
	Serving       bool               `json:"serving"`
	Terminating   bool               `json:"terminating"`
	Sets          model.EndpointSets `json:"sets"`
	// Reason is why it is in these sets and in no other.
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
	ReasonUnknownNode Reason = "UnknownNode" // as NotLocal, and no node is named
)

// Explain returns what is known of a service. It returns false if neither an object nor a slice of it is.
func (s *State) Explain(name model.ServiceName) (*Explanation, bool) {
	svc, skipped := s.services[name], s.skipped[name]
	if svc == nil && skipped == "" {
		return nil, false
	}
	e := &Explanation{Service: name, Skipped: skipped}
	if svc == nil {
		return e, true
	}
	for _, slice := range svc.slices {
		for _, ep := range slice.endpoints {
			if !ep.addr.IsValid() {
				e.InvalidAddresses = append(e.InvalidAddresses, ep.place.Value().invalid)
			}
		}
	}
	if svc.intake == nil {
		if e.Skipped == "" {
			e.Skipped = s.whyNoService()
		}
		return e, true
	}
	for _, slice := range svc.slices {
		for _, p := range slice.ports {
			if svc.intake.model.Port(p.name, p.protocol) == nil {
				unmatched := fmt.Sprintf("%q %d/%v in slice %s", p.name, p.number, p.protocol, slice.name)
				e.UnmatchedPorts = append(e.UnmatchedPorts, unmatched)
			}
		}
	}
	for _, port := range svc.intake.model.Ports {
		for _, f := range s.families {
			if svc.intake.model.ClusterIP(f).IsValid() {
				e.Ports = append(e.Ports, s.explainPort(svc, port, f))
			}
		}
	}
	return e, true
}

// whyNoService says why there may be slices and no Service: watch leaves Services out that are not this proxy's, and their
// slices only if they are headless (S1).
func (s *State) whyNoService() string {
	otherProxy := "names another proxy"
	if s.opts.ServiceProxyName != "" {
		otherProxy = fmt.Sprintf("is not %q", s.opts.ServiceProxyName)
	}
	return fmt.Sprintf("slices are known, but no Service for this proxy: it does not exist, is headless, or its label %s %s",
		labelServiceProxyName, otherProxy)
}

func (s *State) explainPort(svc *service, port model.ServicePort, f model.Family) PortExplanation {
	candidates := collect(nil, svc, port.Name, port.Protocol, f)
	selected := selectFrom(candidates, s.opts.NodeName, s.node.model.Zone)
	e := PortExplanation{
		Port:      svc.intake.model.PortName(port),
		Family:    f.String(),
		Routes:    s.routes(svc.intake, port, f, &selected),
		Topology:  selected.explainTopology(),
		Endpoints: []EndpointExplanation{},
	}
	inUse := e.Routes.Sets()
	for i := range candidates {
		c := &candidates[i]
		sets := selected.sets(c, inUse)
		value := c.model(e.Port, sets)
		reason, text := selected.explain(c, sets, inUse)
		e.Endpoints = append(e.Endpoints, EndpointExplanation{
			Target: c.target, EndpointSlice: c.slice.name, Node: value.Node,
			Ready: value.Ready, Serving: value.Serving, Terminating: value.Terminating,
			Sets: sets, Reason: reason, Text: text,
		})
	}
	return e
}

// explainTopology says which hints are in force, or why none are (S22).
func (s *selection) explainTopology() string {
	switch {
	case s.topology == topologyNode:
		return fmt.Sprintf("node hints: endpoints for node %s", s.nodeName)
	case s.topology == topologyZone:
		return fmt.Sprintf("zone hints: endpoints for %s", s.zone)
	case s.ready == 0:
		return "none: no endpoint is ready"
	case s.withoutNodeHint == s.ready && s.withoutZoneHint == s.ready:
		return "none: no hints"
	}
	var why []string
	if s.withoutNodeHint < s.ready {
		why = append(why, s.whyNot("node", s.withoutNodeHint, s.nodeName))
	}
	if s.withoutZoneHint < s.ready {
		why = append(why, s.whyNot("zone", s.withoutZoneHint, s.zone))
	}
	return "none: " + strings.Join(why, "; ")
}

func (s *selection) whyNot(kind string, without int, own string) string {
	switch {
	case without > 0:
		return fmt.Sprintf("%d of %d ready endpoints have no %s hint", without, s.ready, kind)
	case own == "":
		return fmt.Sprintf("this node's %s is not known", kind)
	}
	return fmt.Sprintf("no %s hint of a ready endpoint names %s", kind, own)
}

// explain says why a candidate is in these sets.
func (s *selection) explain(c *candidate, sets, inUse model.EndpointSets) (Reason, string) {
	flags, place := c.endpoint.flags, c.endpoint.place.Value()
	switch {
	case c.loses:
		return ReasonDuplicate, "another entry with the same address and port is preferred"
	case !flags.has(flagReady) && !flags.has(flagTerminating):
		return ReasonNotReady, "not ready"
	case !flags.has(flagReady) && !flags.has(flagServing):
		return ReasonNotServing, "terminating and not serving"
	case sets.Has(model.ClusterSet) && flags.draining():
		return ReasonLastResort, "serving while it terminates, and no endpoint is ready"
	case sets.Has(model.ClusterSet) && s.topology == topologyNode:
		return ReasonNodeHint, "node hint names this node"
	case sets.Has(model.ClusterSet) && s.topology == topologyZone:
		return ReasonZoneHint, "zone hint names this node's zone"
	case sets.Has(model.ClusterSet):
		return ReasonReady, "ready"
	}

	// Ready or draining, and not in the cluster set.
	reason, text := ReasonReady, "ready"
	switch {
	case flags.draining() && s.ready > 0 && !(sets.Has(model.LocalSet) && !inUse.Has(model.ClusterSet)):
		reason, text = ReasonDraining, "terminating, and others are ready"
	case flags.draining():
		reason, text = ReasonLastResort, "serving while it terminates, and no endpoint on this node is ready"
	case !inUse.Has(model.ClusterSet):
	case s.topology == topologyNode:
		reason, text = ReasonOtherNode, "node hint names "+hintList(place.nodeHints)
	case s.topology == topologyZone:
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
		return ReasonUnknownNode, "its node is not known, and traffic stays on this node"
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
		fmt.Fprintf(&b, "  port %q %v, %s\n    routes: %v\n    topology: %s\n", p.Port.Port, p.Port.Protocol, p.Family, p.Routes, p.Topology)
		if len(p.Endpoints) == 0 {
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
	for _, a := range e.InvalidAddresses {
		fmt.Fprintf(&b, "  %q is not an IP address of its slice's family\n", a)
	}
	return b.String()
}
