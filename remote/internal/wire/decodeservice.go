package wire

import (
	"time"

	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// service decodes a service. It leaves out ports with unknown values.
func (d *Decoder) service(name model.ServiceName, b []byte) *model.Service {
	out := &model.Service{Name: name}
	var ranges []*remotev1.Prefix
	var check []byte
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isBytes:
			out.UID, r.err = ownString("uid", r.bytes)
		case 2<<3 | isFixed:
			out.Created = time.Time{}
			if r.n != 0 {
				out.Created = time.Unix(int64(r.n), 0).UTC()
			}
		case 3<<3 | isNumber:
			out.Type = d.serviceType(remotev1.ServiceType(r.n))
		case 4<<3 | isNumber:
			out.Headless = r.n != 0
		case 5<<3 | isBytes:
			out.LoadBalancerClass, r.err = d.string("loadBalancerClass", r.bytes)
		case 6<<3 | isBytes:
			out.ExternalName, r.err = ownString("externalName", r.bytes)
		case 7<<3 | isBytes:
			r.err = d.mapEntry(&out.Labels, "labels", r.bytes)
		case 8<<3 | isBytes:
			r.err = d.mapEntry(&out.Annotations, "annotations", r.bytes)
		case 9<<3 | isBytes:
			out.ClusterIPs = append(out.ClusterIPs, d.address("clusterIPs", r.bytes))
		case 10<<3 | isBytes:
			out.ExternalIPs = append(out.ExternalIPs, d.address("externalIPs", r.bytes))
		case 11<<3 | isBytes:
			out.LoadBalancerIPs = append(out.LoadBalancerIPs, d.address("loadBalancerIPs", r.bytes))
		case 12<<3 | isBytes:
			p := &remotev1.Prefix{}
			r.err = proto.Unmarshal(r.bytes, p)
			ranges = append(ranges, p)
		case 13<<3 | isNumber:
			out.InternalTrafficPolicy = d.policy(remotev1.TrafficPolicy(r.n))
		case 14<<3 | isNumber:
			out.ExternalTrafficPolicy = d.policy(remotev1.TrafficPolicy(r.n))
		case 15<<3 | isNumber:
			out.SessionAffinityTimeout = time.Duration(min(r.n, 1<<31)) * time.Second
		case 16<<3 | isBytes:
			r.err = join(&check, r.bytes)
		case 17<<3 | isBytes:
			r.err = d.servicePort(out, r.bytes)
		}
	}
	err := r.err
	if err == nil && check != nil {
		err = d.healthCheck(out, check)
	}
	if err != nil {
		d.bad("service", "%v", err)
	}
	out.LoadBalancerSourceRanges = d.prefixes("loadBalancerSourceRanges", ranges)
	return out
}

func (d *Decoder) serviceType(t remotev1.ServiceType) model.ServiceType {
	if !d.known(t >= 0 && t <= remotev1.ServiceType_SERVICE_TYPE_EXTERNAL_NAME) {
		return model.ServiceTypeUnknown
	}
	return model.ServiceType(t)
}

func (d *Decoder) policy(p remotev1.TrafficPolicy) model.TrafficPolicy {
	d.known(p >= 0 && p <= remotev1.TrafficPolicy_TRAFFIC_POLICY_LOCAL)
	if p == remotev1.TrafficPolicy_TRAFFIC_POLICY_LOCAL {
		return model.TrafficPolicyLocal
	}
	return model.TrafficPolicyCluster
}

// mapEntry decodes an entry of a map and adds it to m.
func (d *Decoder) mapEntry(m *map[string]string, field string, b []byte) error {
	var key, value string
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isBytes:
			key, r.err = d.string(field, r.bytes)
		case 2<<3 | isBytes:
			value, r.err = d.string(field, r.bytes)
		}
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
	return r.err
}

func (d *Decoder) healthCheck(s *model.Service, b []byte) error {
	s.HealthCheck = &model.HealthCheck{}
	r := fieldReader{rest: b}
	for r.next() {
		if r.tag == 1<<3|isNumber {
			s.HealthCheck.NodePort = d.port("healthCheck.nodePort", uint32(r.n))
		}
	}
	return r.err
}

// servicePort decodes a port and adds it to the service, unless it has unknown values.
func (d *Decoder) servicePort(s *model.Service, b []byte) error {
	var out model.ServicePort
	var protocol remotev1.Protocol
	var port, nodePort uint32
	var v4, v6 []byte
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isBytes:
			out.Name, r.err = d.string("ports.name", r.bytes)
		case 2<<3 | isNumber:
			protocol = remotev1.Protocol(r.n)
		case 3<<3 | isNumber:
			port = uint32(r.n)
		case 4<<3 | isNumber:
			nodePort = uint32(r.n)
		case 5<<3 | isBytes:
			out.AppProtocol, r.err = d.string("ports.appProtocol", r.bytes)
		case 6<<3 | isBytes:
			out.TargetPort, r.err = d.string("ports.targetPort", r.bytes)
		case 7<<3 | isBytes:
			r.err = join(&v4, r.bytes)
		case 8<<3 | isBytes:
			r.err = join(&v6, r.bytes)
		case 9<<3 | isNumber:
			out.TooManyEndpoints = r.n != 0
		}
	}
	if r.err != nil {
		return r.err
	}
	routesIPv4, err := d.routesOf(v4)
	if err != nil {
		return err
	}
	routesIPv6, err := d.routesOf(v6)
	if err != nil {
		return err
	}
	var known bool
	if out.Protocol, known = knownProtocol(protocol); !d.known(known && routesIPv4.known && routesIPv6.known) {
		return nil
	}
	out.Routes.IPv4, out.Routes.IPv6 = routesIPv4.Routes, routesIPv6.Routes
	out.Port, out.NodePort = d.port("ports.port", port), d.port("ports.nodePort", nodePort)
	s.Ports = append(s.Ports, out)
	return nil
}

// routes are the routes of a port and family, and whether all their values are known.
type routes struct {
	model.Routes
	known bool
}

// routesOf decodes Routes.
func (d *Decoder) routesOf(b []byte) (routes, error) {
	if known, ok := d.routes[string(b)]; ok {
		return known, nil
	}
	var parts [4][]byte
	out := routes{known: true}
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isBytes, 2<<3 | isBytes, 3<<3 | isBytes, 4<<3 | isBytes:
			r.err = join(&parts[r.tag>>3-1], r.bytes)
		}
	}
	if r.err != nil {
		return out, r.err
	}
	for i, to := range []*model.Route{&out.ClusterIP, &out.External, &out.ExternalFromPod, &out.ExternalFromNode} {
		route, known, err := decodeRoute(parts[i])
		if err != nil {
			return out, err
		}
		*to, out.known = route, out.known && known
	}
	if d.routes == nil {
		d.routes = map[string]routes{}
	}
	d.routes[string(b)] = out
	return out, nil
}

// decodeRoute returns a route, and whether all its values are known.
func decodeRoute(b []byte) (route model.Route, known bool, err error) {
	var sets uint32
	var masquerade remotev1.Masquerade
	var empty remotev1.Verdict
	r := fieldReader{rest: b}
	for r.next() {
		switch r.tag {
		case 1<<3 | isNumber:
			sets = uint32(r.n)
		case 2<<3 | isNumber:
			masquerade = remotev1.Masquerade(r.n)
		case 3<<3 | isNumber:
			empty = remotev1.Verdict(r.n)
		}
	}
	known = masquerade >= 0 && masquerade <= remotev1.Masquerade_MASQUERADE_UNLESS_LOCAL_POD &&
		empty >= 0 && empty <= remotev1.Verdict_VERDICT_DROP && sets <= uint32(model.LocalSet)
	return model.Route{Endpoints: model.EndpointSets(sets), Masquerade: model.Masquerade(masquerade),
		Empty: model.Verdict(empty)}, known, r.err
}
