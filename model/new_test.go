package model_test

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// goodService returns a new dual-stack service that NewService accepts.
func goodService() model.Service {
	return model.Service{
		Name:       model.ServiceName{Namespace: "shop", Name: "web"},
		ClusterIPs: addrs("10.0.0.1", "fd00::1"),
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080},
			{Name: "dns", Protocol: model.TCP, Port: 53},
			{Name: "dns", Protocol: model.UDP, Port: 53, NodePort: 30080},
		},
	}
}

func TestNewServiceNamesEveryProblem(t *testing.T) {
	route := model.Route{Endpoints: model.ClusterSet}
	for _, c := range []struct {
		name   string
		change func(*model.Service)
		wrong  []string // without the object
	}{
		{"nothing", func(s *model.Service) {}, nil},
		{"no ports are fine", func(s *model.Service) { s.Ports = nil }, nil},
		{"no names", func(s *model.Service) { s.Name = model.ServiceName{} },
			[]string{"name.namespace: is empty", "name.name: is empty"}},
		{"no cluster IP", func(s *model.Service) { s.ClusterIPs = nil }, []string{"clusterIPs: is empty"}},
		{"a headless service has no cluster IP", func(s *model.Service) {
			s.ClusterIPs, s.Headless, s.Ports[0].NodePort, s.Ports[2].NodePort = nil, true, 0, 0
		}, nil},
		{"a service with an external name has no cluster IP", func(s *model.Service) {
			s.ClusterIPs, s.Type, s.ExternalName, s.Ports = nil, model.ServiceTypeExternalName, "www.example.com", nil
		}, nil},
		{"a headless service with a cluster IP", func(s *model.Service) { s.Headless = true },
			[]string{"clusterIPs: a headless service has none"}},
		{"an external name with a cluster IP", func(s *model.Service) { s.ExternalName = "www.example.com" },
			[]string{"clusterIPs: a service with an external name has none"}},
		{"headless and an external name", func(s *model.Service) {
			s.ClusterIPs, s.Headless, s.ExternalName = nil, true,
				"www.example.com"
		},
			[]string{"headless: a service with an external name is not headless"}},
		{"an unknown type", func(s *model.Service) { s.Type = 9 },
			[]string{"type: unknown service type: ServiceType(9)"}},
		{"an invalid cluster IP", func(s *model.Service) { s.ClusterIPs[1] = netip.Addr{} },
			[]string{"clusterIPs[1]: is not an address"}},
		{"cluster IPs that no host has", func(s *model.Service) {
			s.ClusterIPs = addrs("0.0.0.0", "::", "224.0.0.1", "ff02::1", "fe80::1%eth0")
		},
			[]string{
				"clusterIPs[0]: 0.0.0.0 is not a host address", "clusterIPs[1]: :: is not a host address",
				"clusterIPs[2]: 224.0.0.1 is not a host address",
				"clusterIPs[3]: ff02::1 is not a host address",
				"clusterIPs[4]: fe80::1%eth0 has a zone",
			}},
		{"two cluster IPs of one family", func(s *model.Service) { s.ClusterIPs = addrs("10.0.0.1", "10.0.0.2") },
			[]string{"clusterIPs: 10.0.0.2 is a second IPv4 address"}},
		{"two cluster IPs of one family, one of them IPv4-mapped",
			func(s *model.Service) { s.ClusterIPs = addrs("10.0.0.1", "::ffff:10.0.0.1") },
			[]string{"clusterIPs: 10.0.0.1 is a second IPv4 address"}},
		{"external IPs of a family without cluster IP", func(s *model.Service) {
			s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs = addrs("10.0.0.1"), addrs("203.0.113.1", "2001:db8::1"),
				addrs("2001:db8::2")
		}, []string{"externalIPs: 2001:db8::1, but there is no IPv6 cluster IP",
			"loadBalancerIPs: 2001:db8::2, but there is no IPv6 cluster IP"}},
		{"invalid external addresses", func(s *model.Service) {
			s.ExternalIPs, s.LoadBalancerIPs = []netip.Addr{{}}, addrs("198.51.100.1", "255.255.255.255", "::")
		}, []string{"externalIPs[0]: is not an address", "loadBalancerIPs[1]: 255.255.255.255 is not a host address",
			"loadBalancerIPs[2]: :: is not a host address"}},
		{"an invalid range", func(s *model.Service) {
			s.LoadBalancerSourceRanges = []netip.Prefix{prefix("192.0.2.0/24"), netip.PrefixFrom(addr("192.0.2.0"), 33),
				{}}
		}, []string{"loadBalancerSourceRanges[1]: is not an address range",
			"loadBalancerSourceRanges[2]: is not an address range"}},
		{"unknown policies", func(s *model.Service) { s.InternalTrafficPolicy, s.ExternalTrafficPolicy = 2, 3 },
			[]string{"internalTrafficPolicy: unknown traffic policy: TrafficPolicy(2)",
				"externalTrafficPolicy: unknown traffic policy: TrafficPolicy(3)"}},
		{"a negative affinity timeout", func(s *model.Service) { s.SessionAffinityTimeout = -1 },
			[]string{"sessionAffinityTimeout: -1ns is negative"}},
		{"an impossible health check", func(s *model.Service) {
			s.HealthCheck = &model.HealthCheck{LocalEndpoints: model.PerFamily[int]{IPv4: -1, IPv6: -2}}
		},
			[]string{"healthCheck.nodePort: is 0", "healthCheck.localEndpoints.IPv4: -1 is negative",
				"healthCheck.localEndpoints.IPv6: -2 is negative"}},
		{"port 0", func(s *model.Service) { s.Ports[0].Port, s.Ports[1].Port = 0, 0 },
			[]string{"ports[0].port: is 0", "ports[1].port: is 0"}},
		{"an unknown protocol", func(s *model.Service) { s.Ports[1].Protocol = 7 },
			[]string{"ports[1].protocol: unknown protocol: Protocol(7)"}},
		{"a name twice with one protocol", func(s *model.Service) { s.Ports[1].Name = "http" },
			[]string{`ports[1].name: "http"/TCP is that of ports[0]`}},
		{"no name twice with one protocol", func(s *model.Service) {
			s.Ports[0].Name, s.Ports[1].Name, s.Ports[2].Name = "", "", ""
		},
			[]string{`ports[1].name: ""/TCP is that of ports[0]`}},
		{"a number twice with one protocol", func(s *model.Service) { s.Ports[1].Port = 80 },
			[]string{"ports[1].port: 80/TCP is that of ports[0]"}},
		{"a node port twice with one protocol", func(s *model.Service) { s.Ports[1].NodePort = 30080 },
			[]string{"ports[1].nodePort: 30080/TCP is that of ports[0]"}},
		{"a node port with the number of a port is fine", func(s *model.Service) { s.Ports[1].NodePort = 80 }, nil},
		{"routes in a family without cluster IP", func(s *model.Service) {
			s.ClusterIPs = addrs("fd00::1")
			s.Ports[1].Routes.IPv4.ClusterIP = route
		}, []string{"ports[1].routes.IPv4: there is no IPv4 cluster IP"}},
		{"a route to the cluster IP is missing", func(s *model.Service) {
			s.Ports[0].Routes.IPv6 = model.Routes{External: route, ExternalFromPod: route, ExternalFromNode: route}
		},
			[]string{"ports[0].routes.IPv6.clusterIP: is missing: the port has such addresses"}},
		{"routes to external addresses are missing",
			func(s *model.Service) { s.Ports[0].Routes.IPv4 = model.Routes{ClusterIP: route} },
			[]string{
				"ports[0].routes.IPv4.external: is missing: the port has such addresses",
				"ports[0].routes.IPv4.externalFromPod: is missing: the port has such addresses",
				"ports[0].routes.IPv4.externalFromNode: is missing: the port has such addresses",
			}},
		{"routes to external addresses that the port does not have are not needed",
			func(s *model.Service) { s.Ports[1].Routes.IPv4 = model.Routes{ClusterIP: route} }, nil},
		{"invalid routes", func(s *model.Service) {
			s.Ports[1].Routes.IPv4 = model.Routes{
				ClusterIP: model.Route{Endpoints: model.ClusterSet | model.LocalSet},
				External:  model.Route{Masquerade: model.MasqueradeAlways},
			}
			s.Ports[1].Routes.IPv6 = model.Routes{
				ClusterIP:       model.Route{Endpoints: model.ClusterSet, Masquerade: 3},
				ExternalFromPod: model.Route{Endpoints: 4, Empty: 2},
			}
		}, []string{
			"ports[1].routes.IPv4.clusterIP.endpoints: Cluster,Local is not one endpoint set",
			"ports[1].routes.IPv4.external.endpoints: - is not one endpoint set",
			"ports[1].routes.IPv6.clusterIP.masquerade: unknown masquerade: Masquerade(3)",
			"ports[1].routes.IPv6.externalFromPod.endpoints: EndpointSets(0x4) is not one endpoint set",
			"ports[1].routes.IPv6.externalFromPod.empty: unknown verdict: Verdict(2)",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := goodService()
			c.change(&s)
			made, err := model.NewService(s)
			checkProblems(t, made, err, "service "+s.Name.String(), c.wrong)
		})
	}
}

func TestNewEndpointNamesEveryProblem(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model.Endpoint)
		wrong  []string
	}{
		{"nothing", func(e *model.Endpoint) {}, nil},
		{"in no set and on no node", func(e *model.Endpoint) { e.Sets, e.Node, e.Local = 0, "", false }, nil},
		{"no names", func(e *model.Endpoint) { e.Port.Service = model.ServiceName{} },
			[]string{"port.service.namespace: is empty", "port.service.name: is empty"}},
		{"a port without a name is fine", func(e *model.Endpoint) { e.Port.Port = "" }, nil},
		{"an unknown protocol", func(e *model.Endpoint) { e.Port.Protocol = 0 },
			[]string{"port.protocol: unknown protocol: Protocol(0)"}},
		{"no target", func(e *model.Endpoint) { e.Target = netip.AddrPort{} },
			[]string{"target: is not an address", "target: the port is 0"}},
		{"port 0", func(e *model.Endpoint) { e.Target = addrPort("192.168.0.2:0") }, []string{"target: the port is 0"}},
		{"a target with a zone", func(e *model.Endpoint) { e.Target = addrPort("[fe80::1%eth0]:80") },
			[]string{"target: fe80::1%eth0 has a zone"}},
		{"an unknown set", func(e *model.Endpoint) { e.Sets = 5 }, []string{"sets: unknown endpoint set in 0x5"}},
		{"in the Local set, but not local", func(e *model.Endpoint) { e.Local = false },
			[]string{"sets: in the Local set, but not local"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := *richEndpoint()
			c.change(&e)
			made, err := model.NewEndpoint(e)
			checkProblems(t, made, err, "endpoint "+e.Key().String(), c.wrong)
			if err == nil {
				assert.Equal(t, e, *made)
			}
		})
	}
}

func TestNewNodeNamesEveryProblem(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model.Node)
		wrong  []string
	}{
		{"nothing", func(n *model.Node) {}, nil},
		{"no name", func(n *model.Node) { n.Name = "" }, []string{"name: is empty"}},
		{"invalid addresses", func(n *model.Node) { n.IPs = []netip.Addr{{}, addr("::")} },
			[]string{"ips[0]: is not an address", "ips[1]: :: is not a host address"}},
		{"invalid ranges", func(n *model.Node) {
			n.PodCIDRs, n.ServiceCIDRs, n.LocalPods = []netip.Prefix{{}}, []netip.Prefix{{}},
				model.LocalPods{CIDRs: []netip.Prefix{{}}}
		}, []string{"podCIDRs[0]: is not an address range", "serviceCIDRs[0]: is not an address range",
			"localPods.cidrs[0]: is not an address range"}},
		{"local pods by bridge", func(n *model.Node) { n.LocalPods = model.LocalPods{Bridge: "cbr0"} }, nil},
		{"local pods by interface", func(n *model.Node) { n.LocalPods = model.LocalPods{InterfacePrefix: "veth"} },
			nil},
		{"local pods by two ways", func(n *model.Node) {
			n.LocalPods = model.LocalPods{Bridge: "cbr0", InterfacePrefix: "veth"}
		},
			[]string{"localPods: only one of cidrs, bridge and interfacePrefix can be set"}},
		{"local pods by two other ways", func(n *model.Node) { n.LocalPods.Bridge = "cbr0" },
			[]string{"localPods: only one of cidrs, bridge and interfacePrefix can be set"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := *richNode()
			n.LocalPods = model.LocalPods{CIDRs: prefixes("10.244.1.0/24")}
			c.change(&n)
			made, err := model.NewNode(n)
			checkProblems(t, made, err, "node "+n.Name, c.wrong)
			if err == nil {
				assert.True(t, made.Equal(&n))
			}
		})
	}
}

func checkProblems[T any](t *testing.T, made *T, err error, object string, wrong []string) {
	t.Helper()
	if wrong == nil {
		require.NoError(t, err)
		require.NotNil(t, made)
		return
	}
	assert.Nil(t, made)
	require.Error(t, err)
	var lines []string
	for _, line := range wrong {
		lines = append(lines, object+": "+line)
	}
	assert.Equal(t, strings.Join(lines, "\n"), err.Error())
}

func TestNewServicePutsValuesIntoForm(t *testing.T) {
	s := goodService()
	s.Created = time.Date(2026, 11, 3, 15, 5, 9, 999, time.FixedZone("CET", 3600))
	s.ClusterIPs = addrs("fd00::1", "::ffff:10.0.0.1")
	s.ExternalIPs = addrs("2001:db8::7", "203.0.113.10", "203.0.113.9", "::ffff:203.0.113.9", "203.0.113.10")
	s.LoadBalancerIPs = addrs("198.51.100.2", "198.51.100.1", "198.51.100.2")
	s.LoadBalancerSourceRanges = prefixes("2001:db8::/32", "192.0.2.200/24", "10.0.0.0/8", "::ffff:192.0.2.0/120",
		"10.1.0.0/16")
	made, err := model.NewService(s)
	require.NoError(t, err)
	assert.Equal(t, time.Date(2026, 11, 3, 14, 5, 9, 0, time.UTC), made.Created)
	assert.Equal(t, addrs("fd00::1", "10.0.0.1"), made.ClusterIPs, "the primary family stays first")
	assert.Equal(t, addrs("203.0.113.9", "203.0.113.10", "2001:db8::7"), made.ExternalIPs)
	assert.Equal(t, addrs("198.51.100.1", "198.51.100.2"), made.LoadBalancerIPs)
	assert.Equal(t, prefixes("10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24", "2001:db8::/32"),
		made.LoadBalancerSourceRanges)
	assert.Equal(t, []string{"http", "dns", "dns"},
		[]string{made.Ports[0].Name, made.Ports[1].Name, made.Ports[2].Name}, "ports keep their order")

	again, err := model.NewService(*made)
	require.NoError(t, err)
	assert.True(t, again.Equal(made))
}

func TestARangeOfEverythingIsNoRestriction(t *testing.T) {
	for name, c := range map[string]struct{ ranges, want []netip.Prefix }{
		"of its own family only":  {prefixes("192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32"), prefixes("2001:db8::/32")},
		"IPv6":                    {prefixes("192.0.2.0/24", "::/0", "2001:db8::/32"), prefixes("192.0.2.0/24")},
		"whatever its address is": {prefixes("192.0.2.0/24", "192.0.2.1/0"), nil},
		"IPv4 in disguise":        {prefixes("192.0.2.0/24", "::ffff:0.0.0.0/96"), nil},
	} {
		s := goodService()
		s.LoadBalancerSourceRanges = c.ranges
		made, err := model.NewService(s)
		require.NoError(t, err, name)
		assert.ElementsMatch(t, c.want, made.LoadBalancerSourceRanges, name)
	}
}

func TestNewServiceComputesRoutes(t *testing.T) {
	s := goodService()
	s.InternalTrafficPolicy, s.ExternalTrafficPolicy = model.TrafficPolicyLocal, model.TrafficPolicyLocal
	s.Ports = s.Ports[:2] // the first one has a node port, the second has none
	internal := model.NewRoutes(model.RoutePolicy{Internal: s.InternalTrafficPolicy, External: s.ExternalTrafficPolicy,
		ClusterIP: true})
	external := model.NewRoutes(model.RoutePolicy{
		Internal: s.InternalTrafficPolicy, External: s.ExternalTrafficPolicy, ClusterIP: true, ExternalAddresses: true,
	})
	given := model.Routes{ClusterIP: model.Route{Endpoints: model.ClusterSet, Masquerade: model.MasqueradeAlways,
		Empty: model.Drop}}

	for _, c := range []struct {
		name   string
		change func(*model.Service)
		routes [2][2]model.Routes // by port, by family
	}{
		{"node ports are in both families", func(s *model.Service) {},
			[2][2]model.Routes{{external, external}, {internal, internal}}},
		{"an external IP is in its family", func(s *model.Service) { s.ExternalIPs = addrs("203.0.113.1") },
			[2][2]model.Routes{{external, external}, {external, internal}}},
		{"a VIP is in its family", func(s *model.Service) { s.LoadBalancerIPs = addrs("2001:db8::1") },
			[2][2]model.Routes{{external, external}, {internal, external}}},
		{"a family without cluster IP has none", func(s *model.Service) { s.ClusterIPs = addrs("fd00::1") },
			[2][2]model.Routes{{{}, external}, {{}, internal}}},
		{"routes that are given stay", func(s *model.Service) { s.Ports[1].Routes.IPv4 = given },
			[2][2]model.Routes{{external, external}, {given, internal}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s
			s.Ports = slices.Clone(s.Ports)
			c.change(&s)
			made, err := model.NewService(s)
			require.NoError(t, err)
			for i, p := range made.Ports {
				assert.Equal(t, c.routes[i], [2]model.Routes{p.Routes.IPv4, p.Routes.IPv6}, p.Name)
			}
		})
	}
}

func TestNewNodePutsValuesIntoForm(t *testing.T) {
	made, err := model.NewNode(model.Node{
		Name:         "node-1",
		IPs:          addrs("2001:db8::10", "192.0.2.11", "::ffff:192.0.2.10", "192.0.2.11"),
		PodCIDRs:     prefixes("fd00:10:1::1/64", "10.244.1.1/24", "fd00:10:1::/64"),
		ServiceCIDRs: prefixes("fd00::/112", "10.0.0.1/16", "10.0.0.0/16"),
		LocalPods:    model.LocalPods{CIDRs: prefixes("fd00:10::/56", "10.244.0.1/16", "10.244.0.0/16")},
	})
	require.NoError(t, err)
	assert.Equal(t, addrs("2001:db8::10", "192.0.2.11", "192.0.2.10"), made.IPs, "in order")
	assert.Equal(t, prefixes("fd00:10:1::/64", "10.244.1.0/24"), made.PodCIDRs, "in order")
	assert.Equal(t, prefixes("10.0.0.0/16", "fd00::/112"), made.ServiceCIDRs, "sorted")
	assert.Equal(t, prefixes("10.244.0.0/16", "fd00:10::/56"), made.LocalPods.CIDRs, "sorted")
}

func TestNewEndpointUnmapsItsTarget(t *testing.T) {
	e := *richEndpoint()
	e.Target = addrPort("[::ffff:192.168.0.2]:80")
	made, err := model.NewEndpoint(e)
	require.NoError(t, err)
	assert.Equal(t, addrPort("192.168.0.2:80"), made.Target)
}

// Constructors neither share nor write to the caller's slices and maps.
func TestConstructorsCopy(t *testing.T) {
	t.Run("Service", func(t *testing.T) {
		s := richService()
		s.Headless, s.ExternalName = false, ""
		s.ExternalIPs = addrs("203.0.113.9", "203.0.113.7") // to be sorted
		for i := range s.Ports {
			s.Ports[i].Routes.IPv4, s.Ports[i].Routes.IPv6 = model.Routes{}, model.Routes{} // to be computed
		}
		given := *s
		given.ExternalIPs, given.Ports = slices.Clone(s.ExternalIPs), slices.Clone(s.Ports)
		made, err := model.NewService(*s)
		require.NoError(t, err)
		assert.True(t, s.Equal(&given), "the caller's values are as they were")

		want := copyOf(t, made)
		maps.DeleteFunc(s.Labels, func(string, string) bool { return true })
		s.Annotations["x"] = "y"
		for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
			clear(list)
		}
		clear(s.LoadBalancerSourceRanges)
		clear(s.Ports)
		*s.HealthCheck = model.HealthCheck{}
		assert.True(t, made.Equal(want), "%v", made)
	})
	t.Run("Node", func(t *testing.T) {
		n := richNode()
		n.LocalPods.Bridge, n.LocalPods.InterfacePrefix = "", ""
		slices.Reverse(n.ServiceCIDRs) // to be sorted
		first := n.ServiceCIDRs[0]
		made, err := model.NewNode(*n)
		require.NoError(t, err)
		assert.Equal(t, first, n.ServiceCIDRs[0], "the caller's values are as they were")
		want := copyOf(t, made)
		clear(n.IPs)
		for _, list := range [][]netip.Prefix{n.PodCIDRs, n.ServiceCIDRs, n.LocalPods.CIDRs} {
			clear(list)
		}
		assert.True(t, made.Equal(want), "%v", made)
	})
}

// copyOf returns a copy that shares nothing.
func copyOf[T any](t *testing.T, v *T) *T {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	c := new(T)
	require.NoError(t, json.Unmarshal(text, c))
	return c
}
