package remote

import (
	"time"

	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Tags of the fields of a Service and of what is in it.
const (
	serviceUID          = 1<<3 | isBytes
	serviceCreated      = 2<<3 | isFixed
	serviceType         = 3<<3 | isNumber
	serviceHeadless     = 4<<3 | isNumber
	serviceLBClass      = 5<<3 | isBytes
	serviceExternalName = 6<<3 | isBytes
	serviceLabels       = 7<<3 | isBytes
	serviceAnnotations  = 8<<3 | isBytes
	serviceClusterIPs   = 9<<3 | isBytes
	serviceExternalIPs  = 10<<3 | isBytes
	serviceLBIPs        = 11<<3 | isBytes
	serviceSourceRanges = 12<<3 | isBytes
	serviceInternal     = 13<<3 | isNumber
	serviceExternal     = 14<<3 | isNumber
	serviceAffinity     = 15<<3 | isNumber
	serviceHealthCheck  = 16<<3 | isBytes
	servicePorts        = 17<<3 | isBytes

	healthCheckNodePort = 1<<3 | isNumber

	mapKey   = 1<<3 | isBytes
	mapValue = 2<<3 | isBytes

	portName        = 1<<3 | isBytes
	portProtocol    = 2<<3 | isNumber
	portPort        = 3<<3 | isNumber
	portNodePort    = 4<<3 | isNumber
	portAppProtocol = 5<<3 | isBytes
	portTargetPort  = 6<<3 | isBytes
	portRoutesIPv4  = 7<<3 | isBytes
	portRoutesIPv6  = 8<<3 | isBytes

	routesClusterIP        = 1<<3 | isBytes
	routesExternal         = 2<<3 | isBytes
	routesExternalFromPod  = 3<<3 | isBytes
	routesExternalFromNode = 4<<3 | isBytes

	routeEndpoints  = 1<<3 | isNumber
	routeMasquerade = 2<<3 | isNumber
	routeEmpty      = 3<<3 | isNumber
)

// service decodes a service, without the ports that have values that are not known.
func (d *decoder) service(name model.ServiceName, b []byte) *model.Service {
	out := &model.Service{Name: name}
	var ranges []*remotev1.Prefix
	var check []byte
	err := eachField(b, func(t tag, n uint64, bytes []byte) (err error) {
		switch t {
		case serviceUID:
			out.UID, err = ownString("uid", bytes)
		case serviceCreated:
			out.Created = time.Time{}
			if n != 0 {
				out.Created = time.Unix(int64(n), 0).UTC()
			}
		case serviceType:
			out.Type = decodeType(remotev1.ServiceType(n))
		case serviceHeadless:
			out.Headless = n != 0
		case serviceLBClass:
			out.LoadBalancerClass, err = d.string("loadBalancerClass", bytes)
		case serviceExternalName:
			out.ExternalName, err = ownString("externalName", bytes)
		case serviceLabels:
			err = d.mapEntry(&out.Labels, "labels", bytes)
		case serviceAnnotations:
			err = d.mapEntry(&out.Annotations, "annotations", bytes)
		case serviceClusterIPs:
			out.ClusterIPs = append(out.ClusterIPs, d.address("clusterIPs", bytes))
		case serviceExternalIPs:
			out.ExternalIPs = append(out.ExternalIPs, d.address("externalIPs", bytes))
		case serviceLBIPs:
			out.LoadBalancerIPs = append(out.LoadBalancerIPs, d.address("loadBalancerIPs", bytes))
		case serviceSourceRanges:
			p := &remotev1.Prefix{}
			err = proto.Unmarshal(bytes, p)
			ranges = append(ranges, p)
		case serviceInternal:
			out.InternalTrafficPolicy = decodePolicy(remotev1.TrafficPolicy(n))
		case serviceExternal:
			out.ExternalTrafficPolicy = decodePolicy(remotev1.TrafficPolicy(n))
		case serviceAffinity:
			out.SessionAffinityTimeout = time.Duration(min(n, 1<<31)) * time.Second
		case serviceHealthCheck:
			join(&check, bytes)
		case servicePorts:
			err = d.servicePort(out, bytes)
		}
		return err
	})
	if err == nil && check != nil {
		err = d.healthCheck(out, check)
	}
	if err != nil {
		d.bad("service", "%v", err)
	}
	out.LoadBalancerSourceRanges = d.prefixes("loadBalancerSourceRanges", ranges)
	return out
}

func decodeType(t remotev1.ServiceType) model.ServiceType {
	if t < 0 || t > remotev1.ServiceType_SERVICE_TYPE_EXTERNAL_NAME {
		return model.ServiceTypeUnknown
	}
	return model.ServiceType(t)
}

func decodePolicy(p remotev1.TrafficPolicy) model.TrafficPolicy {
	if p == remotev1.TrafficPolicy_TRAFFIC_POLICY_LOCAL {
		return model.TrafficPolicyLocal
	}
	return model.TrafficPolicyCluster
}

// mapEntry decodes an entry of a map, and adds it to m.
func (d *decoder) mapEntry(m *map[string]string, field string, b []byte) error {
	var key, value string
	err := eachField(b, func(t tag, _ uint64, bytes []byte) (err error) {
		switch t {
		case mapKey:
			key, err = d.string(field, bytes)
		case mapValue:
			value, err = d.string(field, bytes)
		}
		return err
	})
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
	return err
}

func (d *decoder) healthCheck(s *model.Service, b []byte) error {
	s.HealthCheck = &model.HealthCheck{}
	return eachField(b, func(t tag, n uint64, _ []byte) error {
		if t == healthCheckNodePort {
			s.HealthCheck.NodePort = d.port("healthCheck.nodePort", uint32(n))
		}
		return nil
	})
}

// servicePort decodes a port, and adds it to the service unless it has values that are not known.
func (d *decoder) servicePort(s *model.Service, b []byte) error {
	var out model.ServicePort
	var protocol remotev1.Protocol
	var port, nodePort uint32
	var v4, v6 []byte
	err := eachField(b, func(t tag, n uint64, bytes []byte) (err error) {
		switch t {
		case portName:
			out.Name, err = d.string("ports.name", bytes)
		case portProtocol:
			protocol = remotev1.Protocol(n)
		case portPort:
			port = uint32(n)
		case portNodePort:
			nodePort = uint32(n)
		case portAppProtocol:
			out.AppProtocol, err = d.string("ports.appProtocol", bytes)
		case portTargetPort:
			out.TargetPort, err = d.string("ports.targetPort", bytes)
		case portRoutesIPv4:
			join(&v4, bytes)
		case portRoutesIPv6:
			join(&v6, bytes)
		}
		return err
	})
	if err != nil {
		return err
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
	if out.Protocol, known = knownProtocol(protocol); !known || !routesIPv4.known || !routesIPv6.known {
		return nil
	}
	out.RoutesIPv4, out.RoutesIPv6 = routesIPv4.Routes, routesIPv6.Routes
	out.Port, out.NodePort = d.port("ports.port", port), d.port("ports.nodePort", nodePort)
	s.Ports = append(s.Ports, out)
	return nil
}

// routes are those of a port and family, and whether all their values are known.
type routes struct {
	model.Routes
	known bool
}

// routesOf decodes Routes.
func (d *decoder) routesOf(b []byte) (routes, error) {
	if known, ok := d.routes[string(b)]; ok {
		return known, nil
	}
	var parts [4][]byte
	out := routes{known: true}
	err := eachField(b, func(t tag, _ uint64, bytes []byte) error {
		switch t {
		case routesClusterIP:
			join(&parts[0], bytes)
		case routesExternal:
			join(&parts[1], bytes)
		case routesExternalFromPod:
			join(&parts[2], bytes)
		case routesExternalFromNode:
			join(&parts[3], bytes)
		}
		return nil
	})
	if err != nil {
		return out, err
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
	err = eachField(b, func(t tag, n uint64, _ []byte) error {
		switch t {
		case routeEndpoints:
			sets = uint32(n)
		case routeMasquerade:
			masquerade = remotev1.Masquerade(n)
		case routeEmpty:
			empty = remotev1.Verdict(n)
		}
		return nil
	})
	known = masquerade >= 0 && masquerade <= remotev1.Masquerade_MASQUERADE_UNLESS_LOCAL_POD &&
		empty >= 0 && empty <= remotev1.Verdict_VERDICT_DROP && sets <= uint32(model.LocalSet)
	return model.Route{Endpoints: model.EndpointSets(sets), Masquerade: model.Masquerade(masquerade),
		Empty: model.Verdict(empty)}, known, err
}
