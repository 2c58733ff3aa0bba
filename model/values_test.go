package model_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

var (
	addr     = netip.MustParseAddr
	prefix   = netip.MustParsePrefix
	addrPort = netip.MustParseAddrPort
)

func addrs(texts ...string) []netip.Addr { return parseAll(addr, texts) }

func prefixes(texts ...string) []netip.Prefix { return parseAll(prefix, texts) }

func parseAll[T any](parse func(string) T, texts []string) []T {
	var list []T
	for _, text := range texts {
		list = append(list, parse(text))
	}
	return list
}

// richService returns a new service with something in every field.
func richService() *model.Service {
	policy := model.RoutePolicy{
		Internal: model.TrafficPolicyLocal, External: model.TrafficPolicyLocal,
		ClusterIP: true, ExternalAddresses: true, DetectsLocalPods: true,
	}
	return &model.Service{
		Name:                     model.ServiceName{Namespace: "shop", Name: "web"},
		UID:                      "8d1f4a52-6a37-4a0c-9f0b-3c1f1b1c7a11",
		Created:                  time.Date(2026, 11, 3, 14, 5, 9, 0, time.UTC),
		Type:                     model.ServiceTypeLoadBalancer,
		LoadBalancerClass:        "example.com/appliance",
		Headless:                 true, // no real service has this together with the rest
		ExternalName:             "www.example.com",
		Labels:                   map[string]string{"app": "web", "team": "a & b"},
		Annotations:              map[string]string{"example.com/weight": "3"},
		ClusterIPs:               addrs("10.0.0.1", "fd00::1"),
		ExternalIPs:              addrs("203.0.113.7", "2001:db8::7"),
		LoadBalancerIPs:          addrs("198.51.100.1", "2001:db8::1"),
		LoadBalancerSourceRanges: prefixes("192.0.2.0/24", "198.51.100.1/32", "2001:db8:1::/48"),
		InternalTrafficPolicy:    model.TrafficPolicyLocal,
		ExternalTrafficPolicy:    model.TrafficPolicyLocal,
		SessionAffinityTimeout:   3 * time.Hour,
		HealthCheck:              &model.HealthCheck{NodePort: 32000, LocalEndpoints: model.PerFamily[int]{IPv4: 2, IPv6: 1}},
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080, AppProtocol: "kubernetes.io/h2c",
				TargetPort: "http",
				Routes:     model.PerFamily[model.Routes]{IPv4: model.NewRoutes(policy), IPv6: model.NewRoutes(policy)}},
			{Name: "dns", Protocol: model.UDP, Port: 53, NodePort: 30053,
				Routes: model.PerFamily[model.Routes]{IPv4: model.NewRoutes(policy), IPv6: model.NewRoutes(policy)}},
		},
	}
}

// richEndpoint returns a new endpoint with something in every field.
func richEndpoint() *model.Endpoint {
	return &model.Endpoint{
		Port: model.PortName{Service: model.ServiceName{Namespace: "shop", Name: "web"},
			Port: "http", Protocol: model.TCP},
		Target: addrPort("[fd00:10::2]:8080"), Node: "node-1", Sets: model.ClusterSet | model.LocalSet,
		Local: true, Ready: true, Serving: true, Terminating: true,
		Details: model.NewDetails(model.EndpointDetails{
			TargetRef: model.TargetRef{Kind: "Pod", Namespace: "shop", Name: "web-0",
				UID: "3f0c1a52-91b5-4e0a-8a40-0c5d7d0f6c11"},
			Hostname: "web-0", Zone: "zone-a", NodeHints: []string{"node-1", "node-2"},
			ZoneHints: []string{"zone-a", "zone-b"},
		}),
	}
}

// richNode returns a new node with something in every field. No real node has all of them, and NewNode would reject it.
func richNode() *model.Node {
	return &model.Node{
		Name: "node-1", Zone: "zone-a",
		IPs:          addrs("192.0.2.10", "2001:db8::10", "192.0.2.11"),
		PodCIDRs:     prefixes("10.244.1.0/24", "fd00:10:1::/64"),
		ServiceCIDRs: prefixes("10.0.0.0/16", "fd00::/112"),
		LocalPods: model.LocalPods{CIDRs: prefixes("10.244.1.0/24", "fd00:10:1::/64"),
			Bridge: "cbr0", InterfacePrefix: "veth"},
		NotEligible: true,
	}
}

// change is one difference that a value can have, and how to make it.
type change struct {
	path  string
	apply func()
}

// changes lists every single difference that a value can have: one for each field of each struct in it, for each
// element of each list, and so on. A field of a type that it does not know fails the test, so that a new field is not
// forgotten.
func changes(t *testing.T, v reflect.Value, path string) []change {
	t.Helper()
	one := func(to any) []change {
		return []change{{fmt.Sprintf("%s = %v", path, to), func() { v.Set(reflect.ValueOf(to).Convert(v.Type())) }}}
	}
	switch x := v.Interface().(type) {
	case netip.Addr:
		return one(x.Next())
	case netip.Prefix:
		return append(one(netip.PrefixFrom(x.Addr(), x.Bits()-1)), one(netip.PrefixFrom(x.Addr().Next(), x.Bits()))...)
	case netip.AddrPort:
		return append(one(netip.AddrPortFrom(x.Addr(), x.Port()+1)),
			one(netip.AddrPortFrom(x.Addr().Next(), x.Port()))...)
	case model.Details:
		details := x.Get()
		var all []change
		for _, c := range changes(t, reflect.ValueOf(&details).Elem(), path) {
			all = append(all, change{c.path, func() { c.apply(); v.Set(reflect.ValueOf(model.NewDetails(details))) }})
		}
		return append(all, change{path + " = zero", func() { v.SetZero() }})
	case time.Time:
		return append(one(x.Add(time.Second)), change{path + " = zero", func() { v.SetZero() }})
	case time.Duration:
		return one(x + time.Nanosecond)
	case model.Protocol:
		return one(model.SCTP)
	case model.TrafficPolicy:
		return one(1 - x)
	case model.ServiceType:
		return one(model.ServiceTypeNodePort)
	case model.EndpointSets:
		return one(x ^ model.LocalSet)
	case model.Masquerade:
		return one((x + 1) % 3)
	case model.Verdict:
		return one(1 - x)
	}
	switch v.Kind() {
	case reflect.String:
		return one(v.String() + "x")
	case reflect.Bool:
		return one(!v.Bool())
	case reflect.Int:
		return one(v.Int() + 1)
	case reflect.Uint16:
		return one(v.Uint() + 1)
	case reflect.Struct:
		var all []change
		for i := range v.NumField() {
			all = append(all, changes(t, v.Field(i), path+"."+v.Type().Field(i).Name)...)
		}
		return all
	case reflect.Pointer:
		require.False(t, v.IsNil(), "%s has to be set", path)
		return append(changes(t, v.Elem(), path), change{path + " = nil", func() { v.SetZero() }})
	case reflect.Slice:
		require.GreaterOrEqual(t, v.Len(), 2, "%s has to have two elements", path)
		all := []change{
			{path + " = nil", func() { v.SetZero() }},
			{path + " without the last element", func() { v.Set(v.Slice(0, v.Len()-1)) }},
			{path + " with the first element once more", func() { v.Set(reflect.Append(v, v.Index(0))) }},
			{path + " swapped", func() { reflect.Swapper(v.Interface())(0, 1) }},
		}
		for i := range v.Len() {
			all = append(all, changes(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i))...)
		}
		return all
	case reflect.Map:
		require.NotZero(t, v.Len(), "%s has to have an element", path)
		key := v.MapKeys()[0]
		text := func(s string) reflect.Value { return reflect.ValueOf(s) }
		return []change{
			{path + " = nil", func() { v.SetZero() }},
			{path + " without " + key.String(), func() { v.SetMapIndex(key, reflect.Value{}) }},
			{path + " with one more", func() { v.SetMapIndex(text("one more"), text("")) }},
			{path + " with another " + key.String(), func() { v.SetMapIndex(key, text("another value")) }},
		}
	}
	require.Fail(t, "this test has to learn about a type", "%s is a %v", path, v.Type())
	return nil
}

// eachChange calls f with two values that differ in one respect, for each respect in which they can.
func eachChange[T any](t *testing.T, rich func() *T, f func(t *testing.T, same, changed *T)) {
	n := len(changes(t, reflect.ValueOf(rich()).Elem(), ""))
	require.NotZero(t, n)
	for i := range n {
		changed := rich()
		c := changes(t, reflect.ValueOf(changed).Elem(), "")[i]
		t.Run(c.path, func(t *testing.T) {
			c.apply()
			f(t, rich(), changed)
		})
	}
}

func TestEqualNoticesEveryField(t *testing.T) {
	t.Run("Service", func(t *testing.T) { noticesEveryField(t, richService) })
	t.Run("Endpoint", func(t *testing.T) { noticesEveryField(t, richEndpoint) })
	t.Run("Node", func(t *testing.T) { noticesEveryField(t, richNode) })
}

func noticesEveryField[T any, P interface {
	*T
	Equal(P) bool
}](t *testing.T, rich func() *T) {
	require.True(t, P(rich()).Equal(rich()))
	eachChange(t, rich, func(t *testing.T, same, changed *T) {
		assert.False(t, P(changed).Equal(same))
		assert.False(t, P(same).Equal(changed))
		assert.True(t, P(changed).Equal(changed))
	})
}

func TestEqualOfNothing(t *testing.T) {
	var s *model.Service
	assert.True(t, s.Equal(nil))
	assert.False(t, s.Equal(&model.Service{}))
	assert.False(t, (&model.Service{}).Equal(nil))
	var e *model.Endpoint
	assert.True(t, e.Equal(nil))
	assert.False(t, e.Equal(&model.Endpoint{}))
	assert.False(t, (&model.Endpoint{}).Equal(nil))
	var n *model.Node
	assert.True(t, n.Equal(nil))
	assert.False(t, n.Equal(&model.Node{}))
	assert.False(t, (&model.Node{}).Equal(nil))
}

func TestNoListIsAnEmptyList(t *testing.T) {
	assert.True(t, (&model.Service{}).Equal(&model.Service{
		Labels: map[string]string{}, Annotations: map[string]string{}, ClusterIPs: addrs(), ExternalIPs: []netip.Addr{},
		LoadBalancerIPs: []netip.Addr{}, LoadBalancerSourceRanges: []netip.Prefix{}, Ports: []model.ServicePort{},
	}))
	assert.True(t, (&model.Node{}).Equal(&model.Node{
		IPs: []netip.Addr{}, PodCIDRs: []netip.Prefix{}, ServiceCIDRs: []netip.Prefix{},
		LocalPods: model.LocalPods{CIDRs: []netip.Prefix{}},
	}))
}

func TestOrder(t *testing.T) {
	serviceNames := []model.ServiceName{{}, {Name: "b"}, {Namespace: "a", Name: "a"}, {Namespace: "a", Name: "b"},
		{Namespace: "b", Name: "a"}}
	ordered(t, serviceNames, model.ServiceName.Compare)

	var ports []model.PortName
	for _, s := range serviceNames {
		for _, port := range []string{"", "http", "https"} {
			for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
				ports = append(ports, model.PortName{Service: s, Port: port, Protocol: protocol})
			}
		}
	}
	ordered(t, ports, model.PortName.Compare)

	// By address, not by text: 10.0.0.9 before 10.0.0.10, and IPv4 before IPv6 (S18).
	targets := parseAll(addrPort, []string{"9.0.0.1:80", "10.0.0.9:8080", "10.0.0.10:80", "10.0.0.10:443", "[::2]:80",
		"[::10]:80", "[2001:db8::]:1"})
	ordered(t, targets, model.CompareTargets)

	prefixes := parseAll(prefix, []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/9", "10.0.0.1/32", "10.128.0.0/9",
		"::/0", "2001:db8::/32"})
	ordered(t, prefixes, model.ComparePrefixes)

	var keys []model.EndpointKey
	for _, p := range ports {
		for _, target := range targets {
			keys = append(keys, model.EndpointKey{Port: p, Target: target})
		}
	}
	ordered(t, keys, model.EndpointKey.Compare)
}

// ordered checks that compare agrees with the order of a sorted list, for any two elements.
func ordered[T any](t *testing.T, list []T, compare func(a, b T) int) {
	t.Helper()
	for i, a := range list {
		for j, b := range list {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			require.Equal(t, want, compare(a, b), "%v and %v", a, b)
		}
	}
}

func TestLookUps(t *testing.T) {
	s := richService()
	assert.Equal(t, addr("10.0.0.1"), s.ClusterIP(model.IPv4))
	assert.Equal(t, addr("fd00::1"), s.ClusterIP(model.IPv6))
	assert.Equal(t, netip.Addr{}, (&model.Service{ClusterIPs: addrs("10.0.0.1")}).ClusterIP(model.IPv6))
	assert.Equal(t, prefixes("192.0.2.0/24", "198.51.100.1/32"), s.SourceRanges(model.IPv4))
	assert.Equal(t, prefixes("2001:db8:1::/48"), s.SourceRanges(model.IPv6))
	assert.Same(t, &s.Ports[1], s.Port("dns", model.UDP))
	assert.Nil(t, s.Port("dns", model.TCP))
	assert.Nil(t, s.Port("", model.UDP))
	assert.Equal(t, "shop/web:dns/UDP", s.PortName(s.Ports[1]).String())

	e := richEndpoint()
	assert.Equal(t, model.EndpointKey{Port: e.Port, Target: e.Target}, e.Key())
	assert.Equal(t, model.IPv6, e.Family())

	n := richNode()
	assert.Equal(t, addr("192.0.2.10"), n.IP(model.IPv4))
	assert.Equal(t, addr("2001:db8::10"), n.IP(model.IPv6))
	assert.Equal(t, netip.Addr{}, (&model.Node{IPs: n.IPs[:1]}).IP(model.IPv6))
}

func TestLocalPodsDetects(t *testing.T) {
	for name, c := range map[string]struct {
		pods   model.LocalPods
		v4, v6 bool
	}{
		"nothing":          {model.LocalPods{}, false, false},
		"an IPv4 range":    {model.LocalPods{CIDRs: prefixes("10.244.0.0/16")}, true, false},
		"an IPv6 range":    {model.LocalPods{CIDRs: prefixes("fd00::/64")}, false, true},
		"a bridge":         {model.LocalPods{Bridge: "cbr0"}, true, true},
		"interface prefix": {model.LocalPods{InterfacePrefix: "veth"}, true, true},
	} {
		assert.Equal(t, []bool{c.v4, c.v6}, []bool{c.pods.Detects(model.IPv4), c.pods.Detects(model.IPv6)}, name)
	}
}

func TestFamilyOf(t *testing.T) {
	assert.Equal(t, model.IPv4, model.FamilyOf(addr("10.0.0.1")))
	assert.Equal(t, model.IPv6, model.FamilyOf(addr("fd00::1")))
	assert.Equal(t, model.IPv6, model.FamilyOf(addr("::ffff:10.0.0.1")))
	assert.Equal(t, model.Family(0), model.FamilyOf(netip.Addr{}))
}

func TestFamilySetsAndValuesByFamily(t *testing.T) {
	for _, f := range model.Families() {
		assert.True(t, f.Set().Has(f) && model.BothFamilies.Has(f))
	}
	assert.False(t, model.IPv4.Set().Has(model.IPv6) || model.IPv6.Set().Has(model.IPv4))
	assert.False(t, model.BothFamilies.Has(0), "which is no family")
	assert.Equal(t, model.BothFamilies, model.IPv4.Set()|model.IPv6.Set())

	var n model.PerFamily[int]
	*n.At(model.IPv4), *n.At(model.IPv6) = 4, 6
	assert.Equal(t, model.PerFamily[int]{IPv4: 4, IPv6: 6}, n)
}
