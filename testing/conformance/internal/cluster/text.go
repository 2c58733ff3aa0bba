package cluster

import (
	"fmt"
	"strings"
)

// String returns the service on one line, without default values.
func (s Service) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	flag := func(set bool, name string) {
		if set {
			parts = append(parts, name)
		}
	}
	add("%s (slot %d", s.Name, s.Slot)
	if s.Families != nil {
		add("%v", s.Families)
	}
	flag(s.NodePort, "node port")
	flag(s.ExternalIP, "external IP")
	flag(s.VIP, "VIP")
	flag(s.ContestsExternalIP, "contested external IP")
	flag(s.ContestsVIP, "contested VIP")
	flag(s.ListsNode, "the node as external IP")
	flag(s.ExternalLocal, "external Local")
	flag(s.InternalLocal, "internal Local")
	if s.Affinity > 0 {
		add("affinity %v", s.Affinity)
	}
	for _, r := range s.Ranges {
		add("range of %v", r)
	}
	text := strings.Join(parts, ", ") + ")"
	for _, p := range s.Ports {
		text += fmt.Sprintf(" %s %d/%v->%d", p.Name, p.Number, p.Protocol, p.Target)
		if p.Endpoints != nil {
			text += endpointsText(p.Endpoints)
		}
	}
	return text + endpointsText(s.Endpoints)
}

func endpointsText(eps []Endpoint) string {
	var parts []string
	for _, e := range eps {
		text := e.At
		if e.Target != 0 {
			text += fmt.Sprintf(":%d", e.Target)
		}
		text += []string{"", " terminating", " unready"}[e.Phase]
		if e.Elsewhere {
			text += " hinted elsewhere"
		}
		parts = append(parts, text)
	}
	return " [" + strings.Join(parts, ", ") + "]"
}
