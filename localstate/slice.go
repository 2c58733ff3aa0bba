package localstate

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// sliceKey names an EndpointSlice object.
type sliceKey struct{ namespace, name string }

// sliceIntake is the part of an EndpointSlice that is kept. It is compact, because slices have all endpoints of the
// cluster. It is immutable once State.setEndpointSlice has stored it.
type sliceIntake struct {
	name    string // in the service's namespace
	service *service
	family  model.Family
	hinted  bool // an endpoint has hints: node and zone matter
	skipped skippedParts
	ports   []slicePort // by name and protocol; shared with other slices of the service that have the same ports
	// The endpoints, in the object's order. packed has a byte of flags and the address of each, see packedSize.
	packed []byte
	places []unique.Handle[place]
}

func (s *sliceIntake) key() sliceKey { return sliceKey{s.service.name.Namespace, s.name} }

// skippedParts counts the ports and endpoints that are not kept, for Explain.
type skippedParts struct{ ports, endpoints int32 }

type slicePort struct {
	name     string
	protocol model.Protocol
	number   uint16
}

// compare orders ports by name and protocol. Equal ones stay in the object's order, which settle needs (S17).
func (p slicePort) compare(o slicePort) int {
	return cmp.Or(cmp.Compare(p.name, o.name), cmp.Compare(p.protocol, o.protocol))
}

// packedSize is the number of bytes that an endpoint takes in sliceIntake.packed.
func packedSize(f model.Family) int {
	if f == model.IPv4 {
		return 1 + 4
	}
	return 1 + 16
}

// len returns the number of endpoints, invalid ones included.
func (s *sliceIntake) len() int { return len(s.places) }

// endpoint returns the packed form of the i-th endpoint.
func (s *sliceIntake) endpoint(i int) []byte {
	size := packedSize(s.family)
	return s.packed[i*size : (i+1)*size]
}

func (s *sliceIntake) flags(i int) endpointFlags { return endpointFlags(s.endpoint(i)[0]) }

// addr returns the address of the i-th endpoint, which has to be a valid one.
func (s *sliceIntake) addr(i int) netip.Addr {
	addr, _ := netip.AddrFromSlice(s.endpoint(i)[1:])
	return addr
}

// add appends an endpoint. An invalid one has the zero Addr.
func (s *sliceIntake) add(addr netip.Addr, flags endpointFlags, p unique.Handle[place]) {
	s.packed = append(s.packed, byte(flags))
	if addr.IsValid() {
		s.packed, _ = addr.AppendBinary(s.packed)
	} else {
		s.packed = append(s.packed, make([]byte, packedSize(s.family)-1)...)
	}
	s.places = append(s.places, p)
	s.hinted = s.hinted || flags&(flagNodeHints|flagZoneHints) != 0
}

// place is where an endpoint is, and its hints. Many endpoints share one, unless details are enabled.
type place struct {
	node string // "": not known
	// The names of the topology hints in the object's order, joined with hintSeparator.
	nodeHints, zoneHints string
	invalid              string // the text of the first address, if it does not parse
	unused               string // the text of the second address
	further              int    // the number of addresses after the first; only the first counts
	details              model.Details
}

type endpointFlags uint8

const (
	flagReady endpointFlags = 1 << iota
	flagServing
	flagTerminating
	flagLocal
	flagNodeHints
	flagZoneHints
	flagInvalid // the address is invalid: the endpoint is kept only for Explain, which shows the text
	flagFurther // it has more addresses, which Explain counts
)

func (f endpointFlags) has(x endpointFlags) bool { return f&x == x }

const hintSeparator = "\n" // occurs in no valid name

// hintNames reports whether a joined list contains a name.
func hintNames(list, name string) bool {
	if list == name {
		return name != ""
	}
	if name == "" {
		return false
	}
	for other := range strings.SplitSeq(list, hintSeparator) {
		if other == name {
			return true
		}
	}
	return false
}

// splitHints returns the names of a joined list.
func splitHints(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, hintSeparator)
}

// admitSlice returns an EndpointSlice as AdmitSlice leaves it, or why it is ignored if it is not admitted.
func (s *State) admitSlice(obj *discoveryv1.EndpointSlice) (admitted *discoveryv1.EndpointSlice, ignored string) {
	if s.opts.AdmitSlice == nil {
		return obj, ""
	}
	own := obj.DeepCopy() // the object may be in an informer's cache
	if own.Labels == nil {
		own.Labels = map[string]string{}
	}
	if !s.opts.AdmitSlice(own) {
		return obj, "AdmitSlice does not admit it"
	}
	own.Namespace, own.Name = obj.Namespace, obj.Name
	return own, ""
}

// intakeSlice reads an EndpointSlice object that is not ignored (S15, S16). The caller fills in the service. old is the
// last version of the object, or nil; it saves look-ups of what has not changed.
func intakeSlice(log klog.Logger, o options, obj *discoveryv1.EndpointSlice, old *sliceIntake) *sliceIntake {
	s := &sliceIntake{name: obj.Name, family: model.IPv4}
	if obj.AddressType == discoveryv1.AddressTypeIPv6 {
		s.family = model.IPv6
	}
	bad := func(field string, i int, reason string) {
		log.Info("Ignoring an invalid value of an EndpointSlice", "endpointSlice", klog.KObj(obj),
			"service", obj.Labels[discoveryv1.LabelServiceName], "field", fmt.Sprintf("%s[%d]", field, i),
			"reason", reason)
	}

	s.ports = make([]slicePort, 0, len(obj.Ports))
	for i := range obj.Ports {
		p := &obj.Ports[i]
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			s.skipped.ports++
			continue // legal: it means "all ports" or "not known yet", neither of which a service proxy can use
		}
		port := slicePort{name: *p.Name, protocol: model.TCP}
		number, ok := parsePort(*p.Port)
		if !ok {
			s.skipped.ports++
			bad("ports", i, fmt.Sprintf("port %d is out of range", *p.Port))
			continue
		}
		port.number = number
		if p.Protocol != nil {
			protocol, err := parseProtocol(*p.Protocol)
			if err != nil {
				s.skipped.ports++
				bad("ports", i, err.Error())
				continue
			}
			port.protocol = protocol
		}
		s.ports = append(s.ports, port)
	}
	slices.SortStableFunc(s.ports, slicePort.compare)

	s.packed = make([]byte, 0, len(obj.Endpoints)*packedSize(s.family))
	s.places = make([]unique.Handle[place], 0, len(obj.Endpoints))
	for i := range obj.Endpoints {
		e := &obj.Endpoints[i]
		if len(e.Addresses) == 0 {
			s.skipped.endpoints++
			bad("endpoints", i, "no address")
			continue
		}
		addr, err := lenient.Addr(e.Addresses[0])
		if err == nil && model.FamilyOf(addr) != s.family {
			err = fmt.Errorf("%q is not of family %v", e.Addresses[0], s.family)
		}
		if err != nil {
			bad("endpoints", i, err.Error())
			p := place{invalid: e.Addresses[0]}
			p.noteFurther(e)
			s.add(netip.Addr{}, flagInvalid, unique.Make(p))
			continue
		}
		p := placeOf(o, e)
		s.add(addr, flagsOf(o.NodeName, p, &e.Conditions), old.shared(s.len(), p))
	}
	return s
}

// shared returns the handle of a place, which is likely to be that of the i-th endpoint of s.
func (s *sliceIntake) shared(i int, p place) unique.Handle[place] {
	if s != nil && i < s.len() && s.places[i].Value() == p {
		return s.places[i]
	}
	return unique.Make(p)
}

func placeOf(o options, e *discoveryv1.Endpoint) place {
	var p place
	if e.NodeName != nil {
		p.node = *e.NodeName
	}
	if e.Hints != nil {
		p.nodeHints = joinHints(e.Hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
		p.zoneHints = joinHints(e.Hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
	}
	p.noteFurther(e)
	if o.EndpointDetails {
		p.details = p.detailsOf(e)
	}
	return p
}

// noteFurther records the addresses after the first, whether or not that one parses.
func (p *place) noteFurther(e *discoveryv1.Endpoint) {
	if p.further = len(e.Addresses) - 1; p.further > 0 {
		p.unused = e.Addresses[1]
	}
}

// detailsOf returns the details of an endpoint, which are for people.
func (p *place) detailsOf(e *discoveryv1.Endpoint) model.Details {
	d := model.EndpointDetails{NodeHints: splitHints(p.nodeHints), ZoneHints: splitHints(p.zoneHints)}
	if ref := e.TargetRef; ref != nil {
		d.TargetRef = model.TargetRef{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: string(ref.UID)}
	}
	if e.Hostname != nil {
		d.Hostname = *e.Hostname
	}
	if e.Zone != nil {
		d.Zone = *e.Zone
	}
	return model.NewDetails(d)
}

func flagsOf(nodeName string, p place, c *discoveryv1.EndpointConditions) endpointFlags {
	var flags endpointFlags
	set := func(flag endpointFlags, on bool) {
		if on {
			flags |= flag
		}
	}
	set(flagReady, c.Ready == nil || *c.Ready)
	set(flagServing, c.Serving == nil || *c.Serving)
	set(flagTerminating, c.Terminating != nil && *c.Terminating)
	set(flagLocal, p.node != "" && p.node == nodeName)
	set(flagNodeHints, p.nodeHints != "")
	set(flagZoneHints, p.zoneHints != "")
	set(flagFurther, p.further > 0)
	return flags
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

// sameContent reports whether two readings of a slice have the same content and service.
func (s *sliceIntake) sameContent(o *sliceIntake) bool {
	return s.service == o.service && s.family == o.family && s.skipped == o.skipped && bytes.Equal(s.packed, o.packed) &&
		slices.Equal(s.places, o.places) && slices.Equal(s.ports, o.ports)
}

// sameEndpoint reports whether the i-th endpoint of s equals the j-th of another slice of the same family.
func (s *sliceIntake) sameEndpoint(i int, o *sliceIntake, j int) bool {
	return s.places[i] == o.places[j] && bytes.Equal(s.endpoint(i), o.endpoint(j))
}

// triggerTime returns the time of the change that caused this version of a slice (S19), or the zero time.
func triggerTime(obj *discoveryv1.EndpointSlice) time.Time {
	text, ok := obj.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok { // without this check, Parse would allocate an error
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
