package model

import (
	"fmt"
	"strings"
)

// line writes the readable forms: "key=value" for values that are set, nothing for others.
type line struct{ b *strings.Builder }

func (l line) text(key, value string) line {
	if value != "" {
		fmt.Fprintf(l.b, " %s=%s", key, value)
	}
	return l
}

func (l line) flag(name string, set bool) line {
	if set {
		l.b.WriteString(" " + name)
	}
	return l
}

// join writes a list with commas between its elements.
func join[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// String returns a readable form: a line for the service, and a line for each port and route, indented.
func (s *Service) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "service %v", s.Name)
	l := line{&b}.flag("headless", s.Headless).text("external-name", s.ExternalName).
		text("cluster-ips", join(s.ClusterIPs)).text("external-ips", join(s.ExternalIPs)).
		text("load-balancer-ips", join(s.LoadBalancerIPs)).text("source-ranges", join(s.LoadBalancerSourceRanges))
	if s.InternalTrafficPolicy == TrafficPolicyLocal {
		l.text("internal", "Local")
	}
	if s.ExternalTrafficPolicy == TrafficPolicyLocal {
		l.text("external", "Local")
	}
	if s.SessionAffinityTimeout > 0 {
		l.text("affinity", s.SessionAffinityTimeout.String())
	}
	if h := s.HealthCheck; h != nil {
		fmt.Fprintf(&b, " health-check=%d (local endpoints: IPv4 %d, IPv6 %d)", h.NodePort, h.LocalEndpoints.IPv4,
			h.LocalEndpoints.IPv6)
	}
	for _, p := range s.Ports {
		b.WriteString("\n  " + p.String())
		for _, f := range Families() {
			for _, r := range p.Routes.At(f).kinds() {
				if !r.route.IsZero() {
					fmt.Fprintf(&b, "\n    %v %s: %v", f, r.kind, r.route)
				}
			}
		}
	}
	return b.String()
}

// String returns a readable form without the routes, for example "http 80/TCP node-port=30080".
func (p ServicePort) String() string {
	var b strings.Builder
	if p.Name != "" {
		b.WriteString(p.Name + " ")
	}
	fmt.Fprintf(&b, "%d/%v", p.Port, p.Protocol)
	if p.NodePort != 0 {
		fmt.Fprintf(&b, " node-port=%d", p.NodePort)
	}
	return b.String()
}

// namedRoute is a route with the name of its kind of traffic, for people and as the field of Routes.
type namedRoute struct {
	kind, field string
	route       Route
}

func (r Routes) kinds() []namedRoute {
	return []namedRoute{
		{"cluster IP", "clusterIP", r.ClusterIP},
		{"external", "external", r.External},
		{"external from local pod", "externalFromPod", r.ExternalFromPod},
		{"external from node", "externalFromNode", r.ExternalFromNode},
	}
}

// String returns a readable form on one line.
func (r Routes) String() string {
	var parts []string
	for _, k := range r.kinds() {
		if !k.route.IsZero() {
			parts = append(parts, k.kind+": "+k.route.String())
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "; ")
}

// String returns a readable form on one line.
func (e *Endpoint) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "endpoint %v sets=%v", e.Key(), e.Sets)
	line{&b}.text("node", e.Node).flag("local", e.Local).flag("not-ready", !e.Ready).
		flag("not-serving", !e.Serving).flag("terminating", e.Terminating)
	if !e.Details.IsZero() {
		d := e.Details.Get()
		line{&b}.text("target", strings.ReplaceAll(d.TargetRef.String(), " ", ":")).text("hostname", d.Hostname).
			text("zone", d.Zone).
			text("node-hints", strings.Join(d.NodeHints, ",")).text("zone-hints", strings.Join(d.ZoneHints, ","))
	}
	return b.String()
}
