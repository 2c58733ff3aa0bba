package wire

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/model"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// FuzzEndpoints holds what is decoded from the wire against protobuf: both refuse the same, and say the same.
func FuzzEndpoints(f *testing.F) {
	full := &remotev1.Endpoint{Port: "http", Protocol: remotev1.Protocol_TCP, Address: []byte{10, 0, 0, 1},
		TargetPort: 80, Node: "n", Sets: 3, Local: true, Conditions: 7,
		Details: &remotev1.EndpointDetails{Hostname: "h", TargetRef: &remotev1.TargetRef{Name: "a"}}}
	f.Add(marshal(full))
	f.Add(append(marshal(full), marshal(&remotev1.Endpoint{Port: "dns", Sets: 1 << 31, Protocol: 99,
		Details: &remotev1.EndpointDetails{Zone: "z"}})...)) // fields that are there twice
	f.Add([]byte{0x0a, 1, 0xff})                                  // a port that is not UTF-8
	f.Add([]byte{0x0a, 5, 'x'})                                   // cut off
	f.Add([]byte{0x08, 1, 0xf8, 0x3e, 7, 0x4d, 1, 2, 3, 4})       // of another type, or unknown
	f.Add([]byte{0x4a, 2, 0x12, 9})                               // malformed details
	f.Add([]byte{0x10, 0x86, 0x80, 0x80, 0x80, 0x10, 0x38, 0x02}) // numbers that are too large
	f.Add([]byte{0x08, 1, 0xf8, 0x90, 0x90, 0x90, 0x1e, 2})       // a field number that is too large
	f.Fuzz(func(t *testing.T, b []byte) {
		var message remotev1.Endpoint
		refused := proto.Unmarshal(b, &message)
		var d Decoder
		e, err := d.endpointFields(b)
		details := d.details(e.details)
		if err == nil {
			err = d.Err()
		}
		if refused != nil {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		assert.Equal(t, message.Port, e.port)
		assert.Equal(t, message.Node, e.node)
		assert.Equal(t, message.Protocol, e.protocol)
		assert.Equal(t, string(message.Address), string(e.address))
		assert.Equal(t, message.TargetPort, e.targetPort)
		assert.Equal(t, message.Sets, e.sets)
		assert.Equal(t, message.Local, e.local)
		assert.Equal(t, message.Conditions, e.conditions)
		assert.Equal(t, message.Details != nil, e.details != nil)
		if want := message.Details; want != nil {
			r := want.GetTargetRef()
			assert.Equal(t, model.NewDetails(model.EndpointDetails{Hostname: want.Hostname, Zone: want.Zone,
				NodeHints: want.NodeHints, ZoneHints: want.ZoneHints, TargetRef: model.TargetRef{Kind: r.GetKind(),
					Namespace: r.GetNamespace(), Name: r.GetName(), UID: r.GetUid()}}), details)
		}
	})
}

// FuzzServices holds services that are decoded from the wire against those that protobuf decodes.
func FuzzServices(f *testing.F) {
	rich := marshal(encodeService(richService()))
	f.Add(rich)
	f.Add(append(rich, rich...)) // fields that are there twice
	newer := encodeService(richService())
	newer.Type, newer.InternalTrafficPolicy, newer.Ports[0].Protocol = 99, 99, 99
	newer.Ports[1].RoutesIPv4.ClusterIP.Masquerade = -1
	f.Add(marshal(newer))
	f.Add([]byte{0x82, 1, 2, 8, 7, 0x82, 1, 0})                            // a health check in two pieces
	f.Add([]byte{0x8a, 1, 8, 0x10, 6, 0x3a, 0, 0x3a, 2, 0x0a, 0})          // routes in two pieces
	f.Add([]byte{0x8a, 1, 8, 0x10, 6, 0x3a, 4, 0x0a, 2, 0x18, 9})          // an unknown verdict
	f.Add([]byte("\x8a\x01\x0a:\x08\x12\x022\x02\x12\x0200"))              // a route that ends within its first piece
	f.Add([]byte{0x3a, 0, 0x3a, 3, 0x0a, 1, 0xff})                         // an empty label, one that is not UTF-8
	f.Add([]byte{0x4a, 1, 1, 0x62, 2, 0x10, 40, 0x78, 0xff, 0xff, 1})      // an address and a prefix that are none
	f.Add([]byte{0x11, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 1, 0x09, 1, 2})    // a time before 1970, one of another type
	f.Add([]byte{0x8a, 1, 4, 0x10, 6, 0x18, 0x80, 0x8a, 1, 2, 0x3a, 0x05}) // ports that are cut off
	f.Add([]byte{0x38, 0x32, 0x32, 1, '0'})                                // labels of another type
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, reference Decoder
		got := d.service(name("a"), b)
		var message remotev1.Service
		if proto.Unmarshal(b, &message) != nil {
			require.Error(t, d.Err())
			return
		}
		want := reference.serviceOf(name("a"), &message)
		if reference.Err() != nil {
			require.Error(t, d.Err())
			return
		}
		require.NoError(t, d.Err())
		assert.True(t, want.Equal(got), "%v\n%v", want, got)
	})
}

// serviceOf decodes a service from its message.
func (d *Decoder) serviceOf(name model.ServiceName, s *remotev1.Service) *model.Service {
	out := &model.Service{
		Name: name, UID: s.GetUid(), Headless: s.GetHeadless(), LoadBalancerClass: s.GetLoadBalancerClass(),
		ExternalName: s.GetExternalName(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		ClusterIPs:               d.addresses("clusterIPs", s.GetClusterIPs()),
		ExternalIPs:              d.addresses("externalIPs", s.GetExternalIPs()),
		LoadBalancerIPs:          d.addresses("loadBalancerIPs", s.GetLoadBalancerIPs()),
		LoadBalancerSourceRanges: d.prefixes("loadBalancerSourceRanges", s.GetLoadBalancerSourceRanges()),
		SessionAffinityTimeout:   time.Duration(min(s.GetSessionAffinityTimeout(), 1<<31)) * time.Second,
		Type:                     model.ServiceType(s.GetType()),
	}
	if _, known := remotev1.ServiceType_name[int32(s.GetType())]; !known {
		out.Type = model.ServiceTypeUnknown
	}
	if s.GetCreated() != 0 {
		out.Created = time.Unix(int64(s.GetCreated()), 0).UTC()
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
		v4, known4 := routesOfMessage(p.GetRoutesIPv4())
		v6, known6 := routesOfMessage(p.GetRoutesIPv6())
		if _, known := remotev1.Protocol_name[int32(p.GetProtocol())]; known && p.GetProtocol() != 0 && known4 && known6 {
			out.Ports = append(out.Ports, model.ServicePort{
				Name: p.GetName(), Protocol: model.Protocol(p.GetProtocol()), Port: d.port("ports.port", p.GetPort()),
				NodePort:    d.port("ports.nodePort", p.GetNodePort()),
				AppProtocol: p.GetAppProtocol(), TargetPort: p.GetTargetPort(),
				TooManyEndpoints: p.GetTooManyEndpoints(),
				Routes:           model.PerFamily[model.Routes]{IPv4: v4, IPv6: v6},
			})
		}
	}
	return out
}

func routesOfMessage(r *remotev1.Routes) (out model.Routes, known bool) {
	known = true
	route := func(r *remotev1.Route) model.Route {
		_, knownMasquerade := remotev1.Masquerade_name[int32(r.GetMasquerade())]
		_, knownVerdict := remotev1.Verdict_name[int32(r.GetEmpty())]
		known = known && knownMasquerade && knownVerdict && r.GetEndpoints() <= uint32(model.LocalSet)
		return model.Route{Endpoints: model.EndpointSets(r.GetEndpoints()),
			Masquerade: model.Masquerade(r.GetMasquerade()), Empty: model.Verdict(r.GetEmpty())}
	}
	out = model.Routes{ClusterIP: route(r.GetClusterIP()), External: route(r.GetExternal()),
		ExternalFromPod: route(r.GetExternalFromPod()), ExternalFromNode: route(r.GetExternalFromNode())}
	return out, known
}

// FuzzUpdate: what is split into its parts, and these, is what protobuf makes of the whole; and no message harms.
func FuzzUpdate(f *testing.F) {
	change := &remotev1.ServiceChange{Namespace: "a", Name: "b", Whole: true, Service: &remotev1.Service{Uid: "u"},
		Endpoints: []*remotev1.Endpoint{{Port: "http", Protocol: 6, Address: []byte{10, 0, 0, 1}, TargetPort: 80}},
		Removed:   []*remotev1.Endpoint{{Port: "http", Protocol: 6, Address: []byte{10, 0, 0, 2}, TargetPort: 80}}}
	part := &remotev1.NodePart{Namespace: "a", Name: "b", Endpoints: change.Endpoints, LocalEndpointsIPv4: 1}
	update := marshal(&remotev1.Update{Kind: remotev1.Kind_DIFF, Services: []*remotev1.ServiceChange{change, change},
		Own: []*remotev1.NodePart{part}, Sync: &remotev1.Sync{Revision: 7}})
	f.Add(update)
	f.Add(append(update, update...))
	f.Add(update[:len(update)-1])
	f.Add([]byte{0x30, 1}) // services of another type
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		var batch Batch
		u, err := d.Update(b, func(b []byte) ([]byte, error) { return b, nil }, &batch)
		var whole remotev1.Update
		if proto.Unmarshal(b, &whole) != nil {
			if err == nil && len(whole.GetCompressed()) == 0 {
				require.Error(t, d.Err())
			}
			return
		}
		if err != nil { // what is compressed in it
			require.NotEmpty(t, whole.Compressed)
			return
		}
		services, own := whole.Services, whole.Own
		whole.Services, whole.Own = nil, nil
		assert.True(t, proto.Equal(&whole, u))
		if len(whole.Compressed) > 0 {
			return
		}
		changes := slices.Concat(batch.Services...)
		require.Len(t, changes, len(services))
		for i, s := range services {
			assert.Equal(t, model.ServiceName{Namespace: s.Namespace, Name: s.Name}, changes[i].Name)
			assert.Equal(t, s.Deleted, changes[i].Deleted)
			assert.Equal(t, s.Service != nil, changes[i].Service != nil)
			assert.LessOrEqual(t, len(changes[i].Endpoints), len(s.Endpoints))
		}
		require.Len(t, batch.Own, len(own))
	})
}
