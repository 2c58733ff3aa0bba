package localstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// sliceKey names an EndpointSlice object.
type sliceKey struct{ namespace, name string }

// sliceIntake is what is remembered of an EndpointSlice. It is compact, because there are as many entries as the cluster
// has endpoints.
type sliceIntake struct {
	name      string // in the service's namespace
	service   *service
	family    model.Family
	hinted    bool // an endpoint has hints: node and zone matter
	ports     []slicePort
	endpoints []sliceEndpoint
}

func (s *sliceIntake) key() sliceKey { return sliceKey{s.service.name.Namespace, s.name} }

type slicePort struct {
	name     string
	protocol model.Protocol
	number   uint16
}

type sliceEndpoint struct {
	addr  netip.Addr // not valid: kept for Explain alone, which says what stands in its place
	place unique.Handle[place]
	flags endpointFlags
}

// place is where an endpoint is and whom it is for. Many endpoints share one.
type place struct {
	node string // "": not known
	// The names of the topology hints in the object's order, joined with hintSeparator.
	nodeHints, zoneHints string
	invalid              string // what stands in the place of the address, if that is none
}

type endpointFlags uint8

const (
	flagReady endpointFlags = 1 << iota
	flagServing
	flagTerminating
	flagLocal
	flagNodeHints
	flagZoneHints
)

func (f endpointFlags) has(x endpointFlags) bool { return f&x == x }

const hintSeparator = "\n" // in no valid name

// hintNames tells whether a joined list has a name in it.
func hintNames(list, name string) bool {
	if list == name {
		return name != ""
	}
	if name == "" || !strings.Contains(list, hintSeparator) {
		return false
	}
	return slices.Contains(strings.Split(list, hintSeparator), name)
}

// ignoresSlice tells whether a slice plays no part: one of a headless service (S1), one without a service or a name, or
// one of no family that is served (S13).
func (s *State) ignoresSlice(obj *discoveryv1.EndpointSlice) bool {
	_, headless := obj.Labels[corev1.IsHeadlessService]
	return headless || obj.Labels[discoveryv1.LabelServiceName] == "" || obj.Name == "" ||
		!slices.ContainsFunc(s.families, func(f model.Family) bool { return f.String() == string(obj.AddressType) })
}

// intakeSlice reads an EndpointSlice object that is not ignored (S15, S16). The caller fills in the service.
func intakeSlice(log klog.Logger, nodeName string, obj *discoveryv1.EndpointSlice) *sliceIntake {
	s := &sliceIntake{name: obj.Name, family: model.IPv4}
	if obj.AddressType == discoveryv1.AddressTypeIPv6 {
		s.family = model.IPv6
	}
	bad := func(field string, i int, reason string) {
		log.Info("Ignoring an invalid value of an EndpointSlice", "endpointSlice", klog.KObj(obj),
			"service", obj.Labels[discoveryv1.LabelServiceName], "field", fmt.Sprintf("%s[%d]", field, i), "reason", reason)
	}

	s.ports = make([]slicePort, 0, len(obj.Ports))
	for i := range obj.Ports {
		p := &obj.Ports[i]
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			continue // legal: it means "all ports" or "not known yet", neither of which a service proxy can use
		}
		port := slicePort{name: *p.Name, protocol: model.TCP}
		number, ok := parsePort(*p.Port)
		if !ok {
			bad("ports", i, fmt.Sprintf("port %d is out of range", *p.Port))
			continue
		}
		port.number = number
		if p.Protocol != nil {
			protocol, err := parseProtocol(*p.Protocol)
			if err != nil {
				bad("ports", i, err.Error())
				continue
			}
			port.protocol = protocol
		}
		s.ports = append(s.ports, port)
	}

	s.endpoints = make([]sliceEndpoint, 0, len(obj.Endpoints))
	for i := range obj.Endpoints {
		e := &obj.Endpoints[i]
		if len(e.Addresses) == 0 {
			bad("endpoints", i, "no address")
			continue
		}
		addr, err := parseAddr(e.Addresses[0])
		if err == nil && model.FamilyOf(addr) != s.family {
			err = fmt.Errorf("%q is not of family %v", e.Addresses[0], s.family)
		}
		if err != nil {
			bad("endpoints", i, err.Error())
			s.endpoints = append(s.endpoints, sliceEndpoint{place: unique.Make(place{invalid: e.Addresses[0]})})
			continue
		}
		s.endpoints = append(s.endpoints, intakeEndpoint(nodeName, addr, e))
		s.hinted = s.hinted || s.endpoints[len(s.endpoints)-1].flags&(flagNodeHints|flagZoneHints) != 0
	}
	return s
}

func intakeEndpoint(nodeName string, addr netip.Addr, e *discoveryv1.Endpoint) sliceEndpoint {
	var p place
	if e.NodeName != nil {
		p.node = *e.NodeName
	}
	if e.Hints != nil {
		p.nodeHints = joinHints(e.Hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
		p.zoneHints = joinHints(e.Hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
	}
	out := sliceEndpoint{addr: addr, place: unique.Make(p)}
	set := func(flag endpointFlags, on bool) {
		if on {
			out.flags |= flag
		}
	}
	set(flagReady, e.Conditions.Ready == nil || *e.Conditions.Ready)
	set(flagServing, e.Conditions.Serving == nil || *e.Conditions.Serving)
	set(flagTerminating, e.Conditions.Terminating != nil && *e.Conditions.Terminating)
	set(flagLocal, p.node != "" && p.node == nodeName)
	set(flagNodeHints, p.nodeHints != "")
	set(flagZoneHints, p.zoneHints != "")
	return out
}

// joinHints joins the names of a list of hints; empty names are no hints (S22).
func joinHints[T any](list []T, name func(T) string) string {
	if len(list) == 1 {
		return name(list[0])
	}
	var names []string
	for _, h := range list {
		if n := name(h); n != "" {
			names = append(names, n)
		}
	}
	return strings.Join(names, hintSeparator)
}

// sameContent tells whether two readings of a slice say the same of the same service.
func (s *sliceIntake) sameContent(o *sliceIntake) bool {
	return s.service == o.service && s.family == o.family && slices.Equal(s.ports, o.ports) && slices.Equal(s.endpoints, o.endpoints)
}

// triggerTime reads the time of the change that led to this version of a slice (S19), or the zero time.
func triggerTime(obj *discoveryv1.EndpointSlice) time.Time {
	t, err := time.Parse(time.RFC3339Nano, obj.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}
