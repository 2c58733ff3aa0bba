package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Decoder turns messages into values of the model. It collects errors: a message with any malformed field is rejected
// as a whole.
type Decoder struct {
	inService   bool // errors are about serviceName; else about nodeName, if that is not empty
	serviceName model.ServiceName
	nodeName    string
	errs        []error
	strings     map[string]string // strings that many values share
	routes      map[string]routes // by their encoding: most ports have the same routes
	room        []model.Endpoint  // allocated but not used yet
	lists       [2][][]byte       // scratch space for each change
	lastPort    string            // of the last endpoint
	skipped     bool              // something unknown was left out
}

func (d *Decoder) bad(field, format string, args ...any) {
	text := field + ": " + fmt.Sprintf(format, args...)
	switch {
	case d.inService:
		text = "service " + d.serviceName.String() + ": " + text
	case d.nodeName != "":
		text = "node " + d.nodeName + ": " + text
	}
	if len(d.errs) < 10 { // enough to find the cause
		d.errs = append(d.errs, errors.New(text))
	}
}

// Err returns all errors so far, joined; nil if there are none.
func (d *Decoder) Err() error { return errors.Join(d.errs...) }

// known records whether a value is unknown, and therefore left out.
func (d *Decoder) known(is bool) bool {
	if !is {
		d.skipped = true
	}
	return is
}

func (d *Decoder) address(field string, b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4In6() {
		d.bad(field, "%x is not an IPv4 or IPv6 address", b)
		return netip.Addr{}
	}
	return a
}

func (d *Decoder) limit(field string, length, most int) {
	if length > most {
		d.bad(field, "has the length %d, more than %d", length, most)
	}
}

func (d *Decoder) addresses(field string, list [][]byte) []netip.Addr {
	var out []netip.Addr
	for _, b := range list {
		out = append(out, d.address(field, b))
	}
	return out
}

func (d *Decoder) prefixes(field string, list []*remotev1.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		a := d.address(field, p.GetAddress())
		if !a.IsValid() {
			continue
		}
		prefix := netip.PrefixFrom(a, int(min(p.GetBits(), 1000)))
		if !prefix.IsValid() {
			d.bad(field, "%v has no prefix of %d bits", a, p.GetBits())
		}
		out = append(out, prefix)
	}
	return out
}

func (d *Decoder) port(field string, n uint32) uint16 {
	if n > 65535 {
		d.bad(field, "%d is not a port number", n)
		return 0
	}
	return uint16(n)
}

func (d *Decoder) name(namespace, name string) model.ServiceName {
	n := model.ServiceName{Namespace: namespace, Name: name}
	d.serviceName, d.inService = n, true
	if namespace == "" || name == "" {
		d.bad("name", "is empty")
	}
	return n
}

// DecodeNodeVIPs is the reverse of EncodeNodeVIPs.
func DecodeNodeVIPs(m *remotev1.NodeVIPs) ([]netip.Addr, error) {
	var d Decoder
	list := d.addresses("nodeVIPs", m.GetIps())
	return list, d.Err()
}

func (d *Decoder) node(n *remotev1.Node) *model.Node {
	d.nodeName, d.inService = n.GetName(), false
	l := n.GetLocalPods()
	return &model.Node{
		Name: n.GetName(), Zone: n.GetZone(), IPs: d.addresses("ips", n.GetIps()),
		PodCIDRs:     d.prefixes("podCIDRs", n.GetPodCIDRs()),
		ServiceCIDRs: d.prefixes("serviceCIDRs", n.GetServiceCIDRs()),
		LocalPods: model.LocalPods{CIDRs: d.prefixes("localPods.cidrs", l.GetCidrs()), Bridge: l.GetBridge(),
			InterfacePrefix: l.GetInterfacePrefix()},
		NotEligible: n.GetNotEligible(),
	}
}

func knownProtocol(p remotev1.Protocol) (model.Protocol, bool) {
	switch p {
	case remotev1.Protocol_TCP, remotev1.Protocol_UDP, remotev1.Protocol_SCTP:
		return model.Protocol(p), true
	}
	return 0, false
}

// part decodes a NodePart. The part is nil if it was deleted.
func (d *Decoder) part(b []byte) Part {
	var p remotev1.NodePart
	var endpoints [][]byte
	err := split(b, &p, part{nodePartEndpoints, &endpoints})
	name := d.name(p.GetNamespace(), p.GetName())
	if err != nil {
		d.bad("own", "%v", err)
	}
	out := &localstate.NodePart{
		LocalEndpoints: model.PerFamily[int]{
			IPv4: int(p.GetLocalEndpointsIPv4()), IPv6: int(p.GetLocalEndpointsIPv6())},
		Endpoints: d.endpoints(name, endpoints),
	}
	slices.SortFunc(out.Endpoints, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	for _, u := range p.GetUnselected() {
		if protocol, known := knownProtocol(u.GetProtocol()); d.known(known) {
			out.Unselected = append(out.Unselected,
				localstate.PortFamily{Port: u.GetPort(), Protocol: protocol, Family: model.Family(u.GetFamily())})
		}
	}
	slices.SortFunc(out.Unselected, localstate.PortFamily.Compare)
	if out.Equal(&localstate.NodePart{}) {
		return Part{name, nil}
	}
	return Part{name, out}
}
