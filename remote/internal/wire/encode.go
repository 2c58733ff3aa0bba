package wire

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// The functions of this file turn values of the model into messages. decode.go has the reverse.

func addresses(list []netip.Addr) [][]byte {
	var out [][]byte
	for _, a := range list {
		out = append(out, a.AsSlice())
	}
	return out
}

func prefixes(list []netip.Prefix) []*remotev1.Prefix {
	var out []*remotev1.Prefix
	for _, p := range list {
		out = append(out, &remotev1.Prefix{Address: p.Addr().AsSlice(), Bits: uint32(p.Bits())})
	}
	return out
}

// EncodeNodeVIPs returns the message of such addresses.
func EncodeNodeVIPs(list []netip.Addr) *remotev1.NodeVIPs {
	return &remotev1.NodeVIPs{Ips: addresses(list)}
}

// EncodeNode returns the message of a node.
func EncodeNode(n *model.Node) *remotev1.Node {
	return &remotev1.Node{
		Name: n.Name, Zone: n.Zone, Ips: addresses(n.IPs), PodCIDRs: prefixes(n.PodCIDRs),
		ServiceCIDRs: prefixes(n.ServiceCIDRs),
		LocalPods: &remotev1.LocalPods{Cidrs: prefixes(n.LocalPods.CIDRs), Bridge: n.LocalPods.Bridge,
			InterfacePrefix: n.LocalPods.InterfacePrefix},
		NotEligible: n.NotEligible,
	}
}

func encodeService(s *model.Service) *remotev1.Service {
	out := &remotev1.Service{
		Uid: s.UID, Type: remotev1.ServiceType(s.Type), Headless: s.Headless, LoadBalancerClass: s.LoadBalancerClass,
		ExternalName: s.ExternalName, Labels: s.Labels, Annotations: s.Annotations,
		ClusterIPs: addresses(s.ClusterIPs), ExternalIPs: addresses(s.ExternalIPs),
		LoadBalancerIPs:          addresses(s.LoadBalancerIPs),
		LoadBalancerSourceRanges: prefixes(s.LoadBalancerSourceRanges),
		InternalTrafficPolicy:    remotev1.TrafficPolicy(s.InternalTrafficPolicy),
		ExternalTrafficPolicy:    remotev1.TrafficPolicy(s.ExternalTrafficPolicy),
		SessionAffinityTimeout:   uint64(s.SessionAffinityTimeout / time.Second),
	}
	if !s.Created.IsZero() {
		out.Created = uint64(s.Created.Unix())
	}
	if s.HealthCheck != nil {
		out.HealthCheck = &remotev1.HealthCheck{NodePort: uint32(s.HealthCheck.NodePort)}
	}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, &remotev1.ServicePort{
			Name: p.Name, Protocol: remotev1.Protocol(p.Protocol), Port: uint32(p.Port), NodePort: uint32(p.NodePort),
			AppProtocol: p.AppProtocol, TargetPort: p.TargetPort, TooManyEndpoints: p.TooManyEndpoints,
			RoutesIPv4: encodeRoutes(p.Routes.IPv4), RoutesIPv6: encodeRoutes(p.Routes.IPv6),
		})
	}
	return out
}

func encodeRoutes(r model.Routes) *remotev1.Routes {
	if r == (model.Routes{}) {
		return nil
	}
	return &remotev1.Routes{ClusterIP: encodeRoute(r.ClusterIP), External: encodeRoute(r.External),
		ExternalFromPod: encodeRoute(r.ExternalFromPod), ExternalFromNode: encodeRoute(r.ExternalFromNode)}
}

func encodeRoute(r model.Route) *remotev1.Route {
	if r == (model.Route{}) {
		return nil
	}
	return &remotev1.Route{Endpoints: uint32(r.Endpoints), Masquerade: remotev1.Masquerade(r.Masquerade),
		Empty: remotev1.Verdict(r.Empty)}
}

const (
	conditionReady = 1 << iota
	conditionServing
	conditionTerminating

	allConditions = conditionReady | conditionServing | conditionTerminating
	allSets       = uint32(model.ClusterSet | model.LocalSet)
)

func encodeKey(k model.EndpointKey) *remotev1.Endpoint {
	return &remotev1.Endpoint{Port: k.Port.Port, Protocol: remotev1.Protocol(k.Port.Protocol),
		Address: k.Target.Addr().AsSlice(), TargetPort: uint32(k.Target.Port())}
}

func encodeEndpoint(e *model.Endpoint) *remotev1.Endpoint {
	out := encodeKey(e.Key())
	out.Node, out.Sets, out.Local = e.Node, uint32(e.Sets), e.Local
	for _, c := range []struct {
		on  bool
		bit uint32
	}{{e.Ready, conditionReady}, {e.Serving, conditionServing}, {e.Terminating, conditionTerminating}} {
		if c.on {
			out.Conditions |= c.bit
		}
	}
	if !e.Details.IsZero() {
		d := e.Details.Get()
		out.Details = &remotev1.EndpointDetails{Hostname: d.Hostname, Zone: d.Zone, NodeHints: d.NodeHints,
			ZoneHints: d.ZoneHints}
		if r := d.TargetRef; r != (model.TargetRef{}) {
			out.Details.TargetRef = &remotev1.TargetRef{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Uid: r.UID}
		}
	}
	return out
}

// encodePart returns the message of a part; nil means that it was deleted.
func encodePart(name model.ServiceName, p *localstate.NodePart) *remotev1.NodePart {
	out := &remotev1.NodePart{Namespace: name.Namespace, Name: name.Name}
	if p == nil {
		return out
	}
	for _, e := range p.Endpoints {
		out.Endpoints = append(out.Endpoints, encodeEndpoint(e))
	}
	for _, u := range p.Unselected {
		out.Unselected = append(out.Unselected,
			&remotev1.PortFamily{Port: u.Port, Protocol: remotev1.Protocol(u.Protocol), Family: uint32(u.Family)})
	}
	out.LocalEndpointsIPv4, out.LocalEndpointsIPv6 = uint32(p.LocalEndpoints.IPv4), uint32(p.LocalEndpoints.IPv6)
	return out
}

// EncodeOptions returns the message of the options of a node that decide what it is sent.
func EncodeOptions(o localstate.Options) *remotev1.Options {
	d := o.DetectLocal
	return &remotev1.Options{
		MasqueradeAll: o.MasqueradeAll, DrainingEndpoints: o.DrainingEndpoints, NodeIPs: addresses(o.NodeIPs),
		Zone: o.Zone, AllEndpoints: o.AllEndpoints, ExtraSets: uint32(o.ExtraSets),
		NoNodeHints: o.NoNodeHints, NoZoneHints: o.NoZoneHints,
		DetectLocal: &remotev1.DetectLocal{ClusterCIDRs: prefixes(d.ClusterCIDRs), NodeCIDR: d.NodeCIDR,
			Bridge:          d.Bridge,
			InterfacePrefix: d.InterfacePrefix},
	}
}

// maxAddresses is how many addresses, and how many ranges, the options of a client may have. The server keeps them
// while the client is connected.
const maxAddresses = 100

// DecodeOptions is the reverse of EncodeOptions. The options do not have the name of the node.
func DecodeOptions(o *remotev1.Options) (localstate.Options, error) {
	var d Decoder
	in := o.GetDetectLocal()
	d.limit("nodeIPs", len(o.GetNodeIPs()), maxAddresses)
	d.limit("clusterCIDRs", len(in.GetClusterCIDRs()), maxAddresses)
	d.limit("zone", len(o.GetZone()), MaxName)
	d.limit("bridge", len(in.GetBridge()), MaxName)
	d.limit("interfacePrefix", len(in.GetInterfacePrefix()), MaxName)
	if err := d.Err(); err != nil {
		return localstate.Options{}, err
	}
	if sets := o.GetExtraSets(); sets&^allSets != 0 {
		d.bad("extraSets", "%#x has sets that are not known here", sets)
	}
	out := localstate.Options{
		MasqueradeAll: o.GetMasqueradeAll(), DrainingEndpoints: o.GetDrainingEndpoints(),
		Zone: o.GetZone(), AllEndpoints: o.GetAllEndpoints(), ExtraSets: model.EndpointSets(o.GetExtraSets()),
		NoNodeHints: o.GetNoNodeHints(), NoZoneHints: o.GetNoZoneHints(),
		NodeIPs: d.addresses("nodeIPs", o.GetNodeIPs()),
		DetectLocal: localstate.DetectLocal{ClusterCIDRs: d.prefixes("clusterCIDRs", in.GetClusterCIDRs()),
			NodeCIDR: in.GetNodeCIDR(),
			Bridge:   in.GetBridge(), InterfacePrefix: in.GetInterfacePrefix()},
	}
	return out, d.Err()
}
