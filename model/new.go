package model

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// NewService returns a checked copy of a service that a program built itself. It keeps no reference to s: the caller
// may reuse its slices and maps.
//
// The copy is normalised: the creation time is in UTC, without fractions of a second; IPv4-mapped addresses and ranges
// are IPv4; external and load-balancer IPs and source ranges are sorted, without duplicates; source ranges of a family
// for which one of them is a /0 are removed, because they restrict nothing (S8). If all routes of a port are zero in a
// family that has a cluster IP, they are computed with [NewRoutes] from the policies and addresses of the service, for
// a node that cannot detect local pods and a port that has endpoints. In other cases callers set the routes themselves.
//
// The error joins all problems, each with the service's name and the JSON name of the field: an empty name, an address
// that is invalid or not that of a single host (unspecified, multicast, broadcast or with a zone), no cluster IP where
// one is needed or two of one family, an external address of a family without a cluster IP, ports that share a name,
// number or node port within a protocol, a missing route to an address that the port has, and so on.
func NewService(s Service) (*Service, error) {
	p := problems{object: "service " + s.Name.String()}
	p.serviceName("name", s.Name)
	s.Created = s.Created.UTC().Truncate(time.Second)
	s.Labels, s.Annotations = maps.Clone(s.Labels), maps.Clone(s.Annotations)
	p.addressing(&s)
	s.ClusterIPs = p.addresses("clusterIPs", s.ClusterIPs)
	p.onePerFamily("clusterIPs", s.ClusterIPs)
	s.ExternalIPs = p.externalAddresses("externalIPs", s.ExternalIPs, &s)
	s.LoadBalancerIPs = p.externalAddresses("loadBalancerIPs", s.LoadBalancerIPs, &s)
	s.LoadBalancerSourceRanges = sourceRanges(p.prefixes("loadBalancerSourceRanges", s.LoadBalancerSourceRanges))
	p.known("internalTrafficPolicy", s.InternalTrafficPolicy)
	p.known("externalTrafficPolicy", s.ExternalTrafficPolicy)
	if s.SessionAffinityTimeout < 0 {
		p.add("sessionAffinityTimeout", "%v is negative", s.SessionAffinityTimeout)
	}
	if s.HealthCheck != nil {
		h := *s.HealthCheck
		s.HealthCheck = &h
		p.healthCheck(h)
	}
	s.Ports = slices.Clone(s.Ports)
	p.distinctPorts(s.Ports)
	for i := range s.Ports {
		p.servicePort(fmt.Sprintf("ports[%d]", i), &s, &s.Ports[i])
	}
	return result(&s, p)
}

// NewEndpoint returns a checked copy of an endpoint, with its target unmapped if it is an IPv4-mapped address. The
// error joins all problems, each with the endpoint's key and the field.
func NewEndpoint(e Endpoint) (*Endpoint, error) {
	e.Target = netip.AddrPortFrom(e.Target.Addr().Unmap(), e.Target.Port())
	p := problems{object: "endpoint " + e.Key().String()}
	p.serviceName("port.service", e.Port.Service)
	p.known("port.protocol", e.Port.Protocol)
	p.address("target", e.Target.Addr())
	if e.Target.Port() == 0 {
		p.add("target", "the port is 0")
	}
	p.known("sets", e.Sets)
	if e.Sets.Has(LocalSet) && !e.Local {
		p.add("sets", "in the Local set, but not local")
	}
	return result(&e, p)
}

// NewNode returns a checked copy of a node. It keeps no reference to n. Addresses and ranges are unmapped, masked and
// without duplicates. ServiceCIDRs and LocalPods.CIDRs, whose order has no meaning, are sorted; IPs and PodCIDRs keep
// their order. The error joins all problems, each with the node's name and the field.
func NewNode(n Node) (*Node, error) {
	p := problems{object: "node " + n.Name}
	if n.Name == "" {
		p.add("name", "is empty")
	}
	n.IPs = distinct(p.addresses("ips", n.IPs))
	n.PodCIDRs = distinct(p.prefixes("podCIDRs", n.PodCIDRs))
	n.ServiceCIDRs = sortedPrefixes(p.prefixes("serviceCIDRs", n.ServiceCIDRs))
	l := &n.LocalPods
	l.CIDRs = sortedPrefixes(p.prefixes("localPods.cidrs", l.CIDRs))
	ways := 0
	for _, set := range []bool{len(l.CIDRs) > 0, l.Bridge != "", l.InterfacePrefix != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		p.add("localPods", "only one of cidrs, bridge and interfacePrefix can be set")
	}
	return result(&n, p)
}

// problems collects the errors of one object.
type problems struct {
	object string
	errs   []error
}

func (p *problems) add(field, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s: %s", p.object, field, fmt.Sprintf(format, args...)))
}

func result[T any](v *T, p problems) (*T, error) {
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return v, nil
}

func (p *problems) serviceName(field string, n ServiceName) {
	if n.Namespace == "" {
		p.add(field+".namespace", "is empty")
	}
	if n.Name == "" {
		p.add(field+".name", "is empty")
	}
}

// known records a problem for a value that its enumeration does not have.
func (p *problems) known(field string, v interface{ MarshalText() ([]byte, error) }) {
	if _, err := v.MarshalText(); err != nil {
		p.add(field, "%v", err)
	}
}

// address reports whether an address can be the destination of a connection to one host.
func (p *problems) address(field string, a netip.Addr) bool {
	switch {
	case !a.IsValid():
		p.add(field, "is not an address")
	case a.Zone() != "":
		p.add(field, "%v has a zone", a)
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		p.add(field, "%v is not a host address", a)
	default:
		return true
	}
	return false
}

// addresses returns the valid ones of a list, unmapped, in the list's order, as a new list.
func (p *problems) addresses(field string, list []netip.Addr) []netip.Addr {
	var good []netip.Addr
	for i, a := range list {
		if a = a.Unmap(); p.address(fmt.Sprintf("%s[%d]", field, i), a) {
			good = append(good, a)
		}
	}
	return good
}

// prefixes returns the valid ones of a list, unmapped and masked, in the list's order, as a new list.
func (p *problems) prefixes(field string, list []netip.Prefix) []netip.Prefix {
	var good []netip.Prefix
	for i, x := range list {
		if !x.IsValid() {
			p.add(fmt.Sprintf("%s[%d]", field, i), "is not an address range")
			continue
		}
		if x.Addr().Is4In6() && x.Bits() >= 96 {
			x = netip.PrefixFrom(x.Addr().Unmap(), x.Bits()-96)
		}
		good = append(good, x.Masked())
	}
	return good
}

// addressing checks that a service has cluster IPs or does not need any.
func (p *problems) addressing(s *Service) {
	switch {
	case s.Headless && s.ExternalName != "":
		p.add("headless", "a service with an external name is not headless")
	case len(s.ClusterIPs) == 0 && !s.Headless && s.ExternalName == "":
		p.add("clusterIPs", "is empty")
	case len(s.ClusterIPs) > 0 && s.Headless:
		p.add("clusterIPs", "a headless service has none")
	case len(s.ClusterIPs) > 0 && s.ExternalName != "":
		p.add("clusterIPs", "a service with an external name has none")
	}
	p.known("type", s.Type)
}

func (p *problems) onePerFamily(field string, list []netip.Addr) {
	for i, a := range list {
		if slices.ContainsFunc(list[:i], func(b netip.Addr) bool { return FamilyOf(a) == FamilyOf(b) }) {
			p.add(field, "%v is a second %v address", a, FamilyOf(a))
		}
	}
}

func (p *problems) externalAddresses(field string, list []netip.Addr, s *Service) []netip.Addr {
	list = p.addresses(field, list)
	for _, a := range list {
		if f := FamilyOf(a); !s.ClusterIP(f).IsValid() {
			p.add(field, "%v, but there is no %v cluster IP", a, f)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

func (p *problems) healthCheck(h HealthCheck) {
	if h.NodePort == 0 {
		p.add("healthCheck.nodePort", "is 0")
	}
	for _, f := range Families() {
		if n := *h.LocalEndpoints.At(f); n < 0 {
			p.add(fmt.Sprintf("healthCheck.localEndpoints.%v", f), "%d is negative", n)
		}
	}
}

// distinctPorts reports ports that have the name, number or node port of an earlier port of the same protocol.
func (p *problems) distinctPorts(ports []ServicePort) {
	type claim struct {
		what     string // "name", "port" or "nodePort"
		value    any
		protocol Protocol
	}
	first := map[claim]int{}
	for i, port := range ports {
		for _, c := range []struct {
			claim
			text string
			none bool
		}{
			{claim{"name", port.Name, port.Protocol}, strconv.Quote(port.Name), false},
			{claim{"port", port.Port, port.Protocol}, strconv.Itoa(int(port.Port)), port.Port == 0},
			{claim{"nodePort", port.NodePort, port.Protocol}, strconv.Itoa(int(port.NodePort)), port.NodePort == 0},
		} {
			if c.none {
				continue
			}
			if j, taken := first[c.claim]; taken {
				p.add(fmt.Sprintf("ports[%d].%s", i, c.what), "%s/%v is that of ports[%d]", c.text, port.Protocol, j)
			} else {
				first[c.claim] = i
			}
		}
	}
}

// servicePort checks a port and computes the routes that are missing.
func (p *problems) servicePort(field string, s *Service, port *ServicePort) {
	p.known(field+".protocol", port.Protocol)
	if port.Port == 0 {
		p.add(field+".port", "is 0")
	}
	for _, f := range Families() {
		routes := port.Routes.At(f)
		routesField := fmt.Sprintf("%s.routes.%v", field, f)
		if !s.ClusterIP(f).IsValid() {
			if *routes != (Routes{}) {
				p.add(routesField, "there is no %v cluster IP", f)
			}
			continue
		}
		policy := RoutePolicy{
			Internal: s.InternalTrafficPolicy, External: s.ExternalTrafficPolicy,
			ClusterIP: true, ExternalAddresses: s.hasExternalAddress(*port, f),
		}
		if *routes == (Routes{}) {
			*routes = NewRoutes(policy)
			continue
		}
		p.routes(routesField, *routes, policy)
	}
}

// hasExternalAddress reports whether a port can be reached from outside in a family (S10).
func (s *Service) hasExternalAddress(p ServicePort, f Family) bool {
	ofFamily := func(a netip.Addr) bool { return FamilyOf(a) == f }
	return p.NodePort != 0 || slices.ContainsFunc(s.ExternalIPs, ofFamily) ||
		slices.ContainsFunc(s.LoadBalancerIPs, ofFamily)
}

// routes checks the routes that the caller filled in: all have to be valid, and none may be missing.
func (p *problems) routes(field string, r Routes, policy RoutePolicy) {
	for _, k := range r.kinds() {
		field := field + "." + k.field
		switch {
		case k.route.IsZero() && (k.field == "clusterIP" || policy.ExternalAddresses):
			p.add(field, "is missing: the port has such addresses")
		case k.route.IsZero():
		case k.route.Endpoints != ClusterSet && k.route.Endpoints != LocalSet:
			p.add(field+".endpoints", "%v is not one endpoint set", k.route.Endpoints)
		}
		p.known(field+".masquerade", k.route.Masquerade)
		p.known(field+".empty", k.route.Empty)
	}
}

// sourceRanges sorts the ranges of VIPs and drops duplicates, and all ranges of a family that has a /0 (S8).
func sourceRanges(list []netip.Prefix) []netip.Prefix {
	open := map[Family]bool{}
	for _, x := range list {
		if x.Bits() == 0 {
			open[FamilyOf(x.Addr())] = true
		}
	}
	return slices.DeleteFunc(sortedPrefixes(list), func(x netip.Prefix) bool { return open[FamilyOf(x.Addr())] })
}

func sortedPrefixes(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, ComparePrefixes)
	return slices.Compact(list)
}

// distinct drops duplicates and keeps the order.
func distinct[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		again := seen[v]
		seen[v] = true
		return again
	})
}
