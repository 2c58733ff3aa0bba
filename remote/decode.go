package remote

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// decoder turns messages into the model's values. It collects what is malformed: a message with anything malformed is
// not used at all.
type decoder struct {
	object  string // the one at hand
	errs    []error
	strings map[string]string // of endpoints, by their value
	room    []model.Endpoint  // allocated, and not in use yet
	lists   [2][][]byte       // used again for each change
}

func (d *decoder) bad(field, format string, args ...any) {
	text := field + ": " + fmt.Sprintf(format, args...)
	if d.object != "" {
		text = d.object + ": " + text
	}
	if len(d.errs) < 10 { // enough to see what is the matter
		d.errs = append(d.errs, errors.New(text))
	}
}

func (d *decoder) err() error { return errors.Join(d.errs...) }

func (d *decoder) address(field string, b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4In6() {
		d.bad(field, "%x is not an IPv4 or IPv6 address", b)
		return netip.Addr{}
	}
	return a
}

func (d *decoder) addresses(field string, list [][]byte) []netip.Addr {
	var out []netip.Addr
	for _, b := range list {
		out = append(out, d.address(field, b))
	}
	return out
}

func (d *decoder) prefixes(field string, list []*remotev1.Prefix) []netip.Prefix {
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

func (d *decoder) port(field string, n uint32) uint16 {
	if n > 65535 {
		d.bad(field, "%d is not a port number", n)
		return 0
	}
	return uint16(n)
}

func (d *decoder) name(namespace, name string) model.ServiceName {
	n := model.ServiceName{Namespace: namespace, Name: name}
	d.object = "service " + n.String()
	if namespace == "" || name == "" {
		d.bad("name", "is empty")
	}
	return n
}

func (d *decoder) node(n *remotev1.Node) *model.Node {
	d.object = "node " + n.GetName()
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

// service returns a service without the ports that have values that are not known.
func (d *decoder) service(name model.ServiceName, s *remotev1.Service) *model.Service {
	out := &model.Service{
		Name: name, UID: s.GetUid(), Headless: s.GetHeadless(), LoadBalancerClass: s.GetLoadBalancerClass(),
		ExternalName: s.GetExternalName(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		ClusterIPs:               d.addresses("clusterIPs", s.GetClusterIPs()),
		ExternalIPs:              d.addresses("externalIPs", s.GetExternalIPs()),
		LoadBalancerIPs:          d.addresses("loadBalancerIPs", s.GetLoadBalancerIPs()),
		LoadBalancerSourceRanges: d.prefixes("loadBalancerSourceRanges", s.GetLoadBalancerSourceRanges()),
		SessionAffinityTimeout:   time.Duration(min(s.GetSessionAffinityTimeout(), 1<<31)) * time.Second,
	}
	if s.GetCreated() != 0 {
		out.Created = time.Unix(int64(s.GetCreated()), 0).UTC()
	}
	if t := model.ServiceType(s.GetType()); s.GetType() <= remotev1.ServiceType_SERVICE_TYPE_EXTERNAL_NAME &&
		s.GetType() >= 0 {
		out.Type = t
	}
	if s.GetInternalTrafficPolicy() == remotev1.TrafficPolicy_TRAFFIC_POLICY_LOCAL {
		out.InternalTrafficPolicy = model.TrafficPolicyLocal
	}
	if s.GetExternalTrafficPolicy() == remotev1.TrafficPolicy_TRAFFIC_POLICY_LOCAL {
		out.ExternalTrafficPolicy = model.TrafficPolicyLocal
	}
	if h := s.GetHealthCheck(); h != nil {
		out.HealthCheck = &model.HealthCheck{NodePort: d.port("healthCheck.nodePort", h.GetNodePort())}
	}
	for _, p := range s.GetPorts() {
		protocol, known := knownProtocol(p.GetProtocol())
		v4, known4 := decodeRoutes(p.GetRoutesIPv4())
		v6, known6 := decodeRoutes(p.GetRoutesIPv6())
		if !known || !known4 || !known6 {
			continue
		}
		out.Ports = append(out.Ports, model.ServicePort{
			Name: p.GetName(), Protocol: protocol, Port: d.port("ports.port", p.GetPort()),
			NodePort:    d.port("ports.nodePort", p.GetNodePort()),
			AppProtocol: p.GetAppProtocol(), TargetPort: p.GetTargetPort(), RoutesIPv4: v4, RoutesIPv6: v6,
		})
	}
	return out
}

func knownProtocol(p remotev1.Protocol) (model.Protocol, bool) {
	known := []remotev1.Protocol{remotev1.Protocol_TCP, remotev1.Protocol_UDP, remotev1.Protocol_SCTP}
	if !slices.Contains(known, p) {
		return 0, false
	}
	return model.Protocol(p), true
}

func decodeRoutes(r *remotev1.Routes) (model.Routes, bool) {
	var out model.Routes
	for _, x := range []struct {
		in  *remotev1.Route
		out *model.Route
	}{{r.GetClusterIP(), &out.ClusterIP}, {r.GetExternal(), &out.External},
		{r.GetExternalFromPod(), &out.ExternalFromPod},
		{r.GetExternalFromNode(), &out.ExternalFromNode}} {
		m, v, sets := x.in.GetMasquerade(), x.in.GetEmpty(), x.in.GetEndpoints()
		if m < 0 || m > remotev1.Masquerade_MASQUERADE_UNLESS_LOCAL_POD || v < 0 || v > remotev1.Verdict_VERDICT_DROP ||
			sets > uint32(model.LocalSet) {
			return out, false
		}
		*x.out = model.Route{Endpoints: model.EndpointSets(sets), Masquerade: model.Masquerade(m),
			Empty: model.Verdict(v)}
	}
	return out, true
}

// part decodes a NodePart. It is nil if it is there no more.
func (d *decoder) part(b []byte) receivedPart {
	var p remotev1.NodePart
	var endpoints [][]byte
	err := split(b, &p, part{nodePartEndpoints, &endpoints})
	name := d.name(p.GetNamespace(), p.GetName())
	if err != nil {
		d.bad("own", "%v", err)
	}
	out := &localstate.NodePart{
		LocalEndpoints: [2]int{int(p.GetLocalEndpointsIPv4()), int(p.GetLocalEndpointsIPv6())},
		Endpoints:      d.endpoints(name, endpoints),
	}
	slices.SortFunc(out.Endpoints, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	for _, u := range p.GetUnselected() {
		if protocol, known := knownProtocol(u.GetProtocol()); known {
			out.Unselected = append(out.Unselected,
				localstate.PortFamily{Port: u.GetPort(), Protocol: protocol, Family: model.Family(u.GetFamily())})
		}
	}
	slices.SortFunc(out.Unselected, localstate.PortFamily.Compare)
	if out.Equal(&localstate.NodePart{}) {
		return receivedPart{name, nil}
	}
	return receivedPart{name, out}
}
