package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// String returns for example "10.96.0.10:80/TCP", or "IPv4 node port 30080/TCP".
func (k Key) String() string {
	if !k.Addr.IsValid() {
		return fmt.Sprintf("%v node port %d/%v", k.Family, k.Port, k.Protocol)
	}
	return fmt.Sprintf("%v/%v", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// Compare orders by family, address, port and protocol.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Family, o.Family), k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port),
		cmp.Compare(k.Protocol, o.Protocol))
}

// Text returns the key in the form that ParseKey reads, for example "IPv4 10.96.0.10 80 TCP", with "-" for a node
// port's address.
func (k Key) Text() string {
	addr := "-"
	if k.Addr.IsValid() {
		addr = k.Addr.String()
	}
	return fmt.Sprintf("%v %s %d %v", k.Family, addr, k.Port, k.Protocol)
}

// ParseKey is the reverse of Key.Text.
func ParseKey(text string) (key Key, err error) {
	fields := strings.Fields(text)
	if len(fields) != 4 {
		return key, fmt.Errorf("invalid frontend %q", text)
	}
	for _, f := range model.Families() {
		if fields[0] == f.String() {
			key.Family = f
		}
	}
	if key.Family == 0 {
		return key, fmt.Errorf("invalid frontend %q: no IP family", text)
	}
	if fields[1] != "-" {
		addr, err := netip.ParseAddr(fields[1])
		if err != nil || model.FamilyOf(addr) != key.Family {
			return key, fmt.Errorf("invalid frontend %q: not an address of the family", text)
		}
		key.Addr = addr
	}
	port, err := strconv.ParseUint(fields[2], 10, 16)
	if err != nil {
		return key, fmt.Errorf("invalid frontend %q: %w", text, err)
	}
	key.Port = uint16(port)
	if err := key.Protocol.UnmarshalText([]byte(fields[3])); err != nil {
		return key, fmt.Errorf("invalid frontend %q: %w", text, err)
	}
	return key, nil
}

// SameAs reports whether two load balancers are equal, regardless of their IDs and the order of their endpoints.
func (lb *LoadBalancer) SameAs(o *LoadBalancer) bool {
	return lb.SameButEndpoints(o) && lb.SourceVIP == o.SourceVIP && sameSet(lb.Endpoints, o.Endpoints)
}

// SameButEndpoints reports whether two load balancers differ only in what can be changed in place: the endpoints, and
// the source that they see.
func (lb *LoadBalancer) SameButEndpoints(o *LoadBalancer) bool {
	return lb.Key == o.Key && lb.TargetPort == o.TargetPort && lb.Distribution == o.Distribution &&
		lb.Flags == o.Flags && lb.PortFlags == o.PortFlags && lb.Foreign == o.Foreign
}

func sameSet(a, b []string) bool {
	return len(a) == len(b) && (slices.Equal(a, b) ||
		slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))))
}

// Text returns a load balancer on one line. lookUp returns an endpoint by its ID, or nil; then the ID is printed.
func (lb *LoadBalancer) Text(lookUp func(id string) *Endpoint) string {
	var parts []string
	flag := func(set bool, name string) {
		if set {
			parts = append(parts, name)
		}
	}
	flag(lb.Foreign, "foreign")
	flag(lb.Flags&DSR != 0, "DSR")
	flag(lb.PortFlags&LocalRoutedVIP != 0, "LocalRoutedVIP")
	flag(lb.PortFlags&UseMux != 0, "UseMux")
	flag(lb.PortFlags&PreserveDIP != 0, "PreserveDIP")
	flag(lb.PortFlags&VIPExternalIP != 0, "VIPExternalIP")
	flag(lb.Distribution == BySource, "by source")
	flag(lb.SourceVIP.IsValid(), "source "+lb.SourceVIP.String())
	var endpoints []string
	for _, id := range lb.Endpoints {
		if e := lookUp(id); e != nil {
			endpoints = append(endpoints, joinAddrs(e.IPs))
		} else {
			endpoints = append(endpoints, "endpoint "+id)
		}
	}
	slices.Sort(endpoints)
	line := fmt.Sprintf("load balancer %v -> %d of %s", lb.Key, lb.TargetPort, strings.Join(endpoints, ", "))
	if len(parts) > 0 {
		line += " (" + strings.Join(parts, ", ") + ")"
	}
	return line + "\n"
}

// Text returns an endpoint on one line.
func (e *Endpoint) Text() string {
	kind := "local"
	if e.Remote {
		kind = "remote"
	}
	line := fmt.Sprintf("%s endpoint %s %s", kind, joinAddrs(e.IPs), e.MAC)
	if e.Name != "" {
		line += " named " + e.Name
	}
	if e.Provider.IsValid() {
		line += " at " + e.Provider.String()
	}
	return line + "\n"
}

func joinAddrs(list []netip.Addr) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
