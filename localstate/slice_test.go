package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestWhichSlicesCount(t *testing.T) {
	without := func(label string) sliceOption {
		return func(obj *discoveryv1.EndpointSlice) { delete(obj.Labels, label) }
	}
	headless := func(obj *discoveryv1.EndpointSlice) { obj.Labels[corev1.IsHeadlessService] = "" }
	for _, tc := range []struct {
		name   string
		opts   Options
		slice  *discoveryv1.EndpointSlice
		counts bool
	}{
		{"S13 a slice belongs to its namespace and its service label", Options{}, aSlice("any-name", ep("10.1.0.1")),
			true},
		{"S13 the name of the slice says nothing", Options{}, aSlice("web-1", ofService("api"), ep("10.1.0.1")), false},
		{"S13 a slice of another namespace is not of this service", Options{},
			aSlice("web-1", ep("10.1.0.1"), func(obj *discoveryv1.EndpointSlice) { obj.Namespace = "elsewhere" }),
			false},
		{"S13 without the label it is ignored", Options{},
			aSlice("web-1", without(discoveryv1.LabelServiceName), ep("10.1.0.1")), false},
		{"S13 with an empty label too", Options{}, aSlice("web-1", ofService(""), ep("10.1.0.1")), false},
		{"S13 without a name it is ignored", Options{}, aSlice("", ep("10.1.0.1")), false},
		{"S1 slices of headless services are ignored, whatever the label's value", Options{},
			aSlice("web-1", headless, ep("10.1.0.1")), false},
		{"S13 FQDN slices are ignored", Options{}, aSlice("web-1", ofType(discoveryv1.AddressTypeFQDN), ep("10.1.0.1")),
			false},
		{"S13 slices of no type are ignored", Options{}, aSlice("web-1", ofType(""), ep("10.1.0.1")), false},
		{"S13 slices of a family that is not served are ignored", Options{Families: []model.Family{model.IPv6}},
			aSlice("web-1", ep("10.1.0.1")), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.NodeName = me
			w := newWorldWith(t, tc.opts, aService("web", clusterIPs("10.0.0.1", "fd00::1")))
			changed := w.set(tc.slice)
			w.flush()
			require.Equal(t, tc.counts, len(w.endpoints("web")) == 1)
			if tc.slice.Labels[discoveryv1.LabelServiceName] == "web" && tc.slice.Namespace == namespace {
				require.Equal(t, tc.counts, changed, "a slice that is ignored changes nothing")
				require.Equal(t, tc.counts, len(w.state.slices) == 1, "and nothing is kept of it")
			}
		})
	}
}

func TestSlicesOfTheOtherFamily(t *testing.T) {
	w := newWorld(t, aService("web", clusterIPs("10.0.0.1")), aSlice("web-1", ep("10.1.0.1")))
	w.change(aSlice("web-2", ofType(discoveryv1.AddressTypeIPv6), ep("fd01::1")))
	require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"),
		"S13 a service is served in its own families only")
	w.change(aService("web", clusterIPs("10.0.0.1", "fd00::1")))
	require.Equal(t, []string{"10.1.0.1:8080 Cluster", "[fd01::1]:8080 Cluster"}, w.endpoints("web"),
		"it becomes dual-stack")
	w.change(aService("web", clusterIPs("fd00::1")))
	require.Equal(t, []string{"[fd01::1]:8080 Cluster"}, w.endpoints("web"), "it loses IPv4")
	w.change(aService("web", clusterIPs("10.0.0.1")))
	require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"), "and has it again, but not IPv6")
}

func TestASliceMovesToAnotherService(t *testing.T) {
	web, api := aService("web"), aService("api", clusterIPs("10.0.0.2"))
	for _, tc := range []struct {
		name    string
		slice   *discoveryv1.EndpointSlice
		endsIn  string
		endsOut string
	}{
		{"S13 a slice whose service label changes leaves its old service",
			aSlice("s", ofService("api"), ep("10.1.0.1")), "api", "web"},
		{"S13 a slice whose service label goes leaves its old service", aSlice("s", ofService(""), ep("10.1.0.1")),
			"", "web"},
		{"S1 a slice that becomes one of a headless service leaves it",
			aSlice("s", func(obj *discoveryv1.EndpointSlice) { obj.Labels[corev1.IsHeadlessService] = "" },
				ep("10.1.0.1")), "", "web"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, web, api, aSlice("s", ep("10.1.0.1")))
			require.Len(t, w.endpoints("web"), 1)
			require.True(t, w.set(tc.slice))
			w.flush()
			require.Empty(t, w.endpoints(tc.endsOut))
			if tc.endsIn != "" {
				require.Len(t, w.endpoints(tc.endsIn), 1)
			}
			w.delete(tc.slice)
			w.flush()
			require.Empty(t, w.got.endpoints)
		})
	}
}

func TestSlicePorts(t *testing.T) {
	number := func(n int32) *int32 { return &n }
	name, protocol := ptr.To("http"), ptr.To(corev1.ProtocolTCP)
	for _, tc := range []struct {
		name  string
		ports []discoveryv1.EndpointPort
		want  []string
	}{
		{"S15 a port without a name is skipped", []discoveryv1.EndpointPort{{Port: number(8080), Protocol: protocol}},
			[]string{}},
		{"S15 a port without a number is skipped", []discoveryv1.EndpointPort{{Name: name, Protocol: protocol}},
			[]string{}},
		{"S15 port 0 is skipped", []discoveryv1.EndpointPort{{Name: name, Protocol: protocol, Port: number(0)}},
			[]string{}},
		{"S15 a port out of range is skipped", []discoveryv1.EndpointPort{
			{Name: name, Protocol: protocol, Port: number(65536)}, {Name: name, Protocol: protocol, Port: number(-1)}},
			[]string{}},
		{"S15 65535 is in range", []discoveryv1.EndpointPort{{Name: name, Protocol: protocol, Port: number(65535)}},
			[]string{"10.1.0.1:65535 Cluster"}},
		{"S11 no protocol means TCP", []discoveryv1.EndpointPort{{Name: name, Port: number(8080)}},
			[]string{"10.1.0.1:8080 Cluster"}},
		{"S11 an empty protocol too", []discoveryv1.EndpointPort{
			{Name: name, Port: number(8080), Protocol: ptr.To(corev1.Protocol(""))}},
			[]string{"10.1.0.1:8080 Cluster"}},
		{"S4 ports match by name and protocol: another name is another port",
			[]discoveryv1.EndpointPort{slicePortObject("https", "TCP", 8080)}, []string{}},
		{"S4 another protocol is another port", []discoveryv1.EndpointPort{slicePortObject("http", "UDP", 8080)},
			[]string{}},
		{"S15 one name with two numbers is both", []discoveryv1.EndpointPort{slicePortObject("http", "TCP", 8081),
			slicePortObject("http", "TCP", 8080)}, []string{"10.1.0.1:8080 Cluster", "10.1.0.1:8081 Cluster"}},
		{"one name with one number twice is one", []discoveryv1.EndpointPort{slicePortObject("http", "TCP", 8080),
			slicePortObject("http", "TCP", 8080)}, []string{"10.1.0.1:8080 Cluster"}},
		{"a slice without ports has no endpoints", nil, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web"), aSlice("web-1", slicePorts(tc.ports...), ep("10.1.0.1")))
			require.Equal(t, tc.want, w.endpoints("web"))
		})
	}

	t.Run("the only port of a service, without a name, is the port without a name of its slices", func(t *testing.T) {
		w := newWorld(t, aService("web", ports(tcp("", 80))),
			aSlice("web-1", slicePorts(slicePortObject("", "TCP", 8080)), ep("10.1.0.1")))
		require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"))
	})
	t.Run("S4 the target port of the Service object does not matter", func(t *testing.T) {
		w := newWorld(t, aService("web", func(obj *corev1.Service) { obj.Spec.Ports[0].TargetPort.IntVal = 1234 }),
			aSlice("web-1", ep("10.1.0.1")))
		require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"))
	})
	t.Run("S15 one name with different numbers in different slices is the union", func(t *testing.T) {
		w := newWorld(t, aService("web"),
			aSlice("web-2", ep("10.1.0.1"), ep("10.1.0.2")),
			aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 9090)), ep("10.1.0.2")))
		require.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster", "10.1.0.2:9090 Cluster"},
			w.endpoints("web"))
	})
}

func TestEndpointAddresses(t *testing.T) {
	addresses := func(list ...string) sliceOption {
		return func(obj *discoveryv1.EndpointSlice) {
			obj.Endpoints = append(obj.Endpoints, discoveryv1.Endpoint{Addresses: list})
		}
	}
	v6 := ofType(discoveryv1.AddressTypeIPv6)
	for _, tc := range []struct {
		name  string
		slice *discoveryv1.EndpointSlice
		want  []string
	}{
		{"S15 only the first address counts", aSlice("s", addresses("10.1.0.1", "10.1.0.2")),
			[]string{"10.1.0.1:8080 Cluster"}},
		{"an endpoint without an address is skipped", aSlice("s", addresses(), addresses("10.1.0.2")),
			[]string{"10.1.0.2:8080 Cluster"}},
		{"S5 an address that is none is skipped", aSlice("s", addresses("10.1.0.256"), addresses("pod"), addresses(""),
			addresses("10.1.0.2")), []string{"10.1.0.2:8080 Cluster"}},
		{"S5 leading zeros are decimal", aSlice("s", addresses("010.001.000.010")), []string{"10.1.0.10:8080 Cluster"}},
		{"S13 an IPv6 address in an IPv4 slice is skipped", aSlice("s", addresses("fd01::1"), addresses("10.1.0.2")),
			[]string{"10.1.0.2:8080 Cluster"}},
		{"S13 an IPv4 address in an IPv6 slice is skipped, mapped or not",
			aSlice("s", v6, addresses("10.1.0.1"), addresses("::ffff:10.1.0.1"), addresses("FD01::0:2")),
			[]string{"[fd01::2]:8080 Cluster"}},
		{"an address with a zone is skipped", aSlice("s", v6, addresses("fe80::1%eth0"), addresses("fd01::2")),
			[]string{"[fd01::2]:8080 Cluster"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web", clusterIPs("10.0.0.1", "fd00::1")), tc.slice)
			require.Equal(t, tc.want, w.endpoints("web"))
		})
	}
}

func TestEndpointsAreSorted(t *testing.T) {
	// S18: by address as a number, not as a text, then by port; IPv4 first.
	w := newWorld(t, aService("web", clusterIPs("10.0.0.1", "fd00::1")))
	calls := w.change(
		aSlice("web-6", ofType(discoveryv1.AddressTypeIPv6), ep("fd01::10"), ep("fd01::9")),
		aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 10000)), ep("10.1.0.9")),
		aSlice("web-2", slicePorts(slicePortObject("http", "TCP", 9000)), ep("10.1.0.10"), ep("10.1.0.9")))
	require.Equal(t, []string{
		"set endpoint ns/web:http/TCP -> 10.1.0.9:9000",
		"set endpoint ns/web:http/TCP -> 10.1.0.9:10000",
		"set endpoint ns/web:http/TCP -> 10.1.0.10:9000",
		"set endpoint ns/web:http/TCP -> [fd01::9]:8080",
		"set endpoint ns/web:http/TCP -> [fd01::10]:8080",
	}, calls)
}

func TestConditions(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	for _, tc := range []struct {
		name                        string
		conditions                  discoveryv1.EndpointConditions
		ready, serving, terminating bool
		used                        bool
	}{
		{"S16 no condition means ready, serving and not terminating", discoveryv1.EndpointConditions{}, true, true,
			false, true},
		{"S16 serving is true by default, even of one that is not ready", discoveryv1.EndpointConditions{Ready: no},
			false, true, false, false},
		{"S16 so one that terminates and says no more than that it is not ready is a last resort",
			discoveryv1.EndpointConditions{Ready: no, Terminating: yes}, false, true, true, true},
		{"S21 serving, but neither ready nor terminating, is never used",
			discoveryv1.EndpointConditions{Ready: no, Serving: yes}, false, true, false, false},
		{"S21 terminating and not serving is never used",
			discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: yes}, false, false, true, false},
		{"S21 ready and terminating, under publishNotReadyAddresses, is ready",
			discoveryv1.EndpointConditions{Ready: yes, Serving: yes, Terminating: yes}, true, true, true, true},
		{"S21 ready and terminating and not serving is ready too",
			discoveryv1.EndpointConditions{Ready: yes, Serving: no, Terminating: yes}, true, false, true, true},
		{"S16 ready and not serving is ready", discoveryv1.EndpointConditions{Ready: yes, Serving: no}, true, false,
			false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			slice := aSlice("web-1", ep("10.1.0.1", func(e *endpointObject) { e.Conditions = tc.conditions }))
			w := newWorld(t, aService("web"), slice)
			require.Equal(t, tc.used, len(w.clusterSet("web")) == 1)
			for _, e := range w.got.endpoints {
				require.Equal(t, tc.ready, e.Ready)
				require.Equal(t, tc.serving, e.Serving)
				require.Equal(t, tc.terminating, e.Terminating)
			}
			explanation, _ := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
			got := explanation.Ports[0].Endpoints[0]
			require.Equal(t, []bool{tc.ready, tc.serving, tc.terminating},
				[]bool{got.Ready, got.Serving, got.Terminating})
		})
	}
}

func TestLocalEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name     string
		nodeName string
		endpoint sliceOption
		node     string
		local    bool
	}{
		{"S16 an endpoint on this node is local", me, ep("10.1.0.1", onNode(me)), me, true},
		{"S16 an endpoint on another node is not", me, ep("10.1.0.1", onNode(other)), other, false},
		{"S16 an endpoint on no node is not", me, ep("10.1.0.1"), "", false},
		{"S16 nothing is local where the node has no name", "", ep("10.1.0.1", onNode("")), "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldWith(t, Options{NodeName: tc.nodeName}, aService("web", internalLocal, nodePort(30080)),
				aSlice("web-1", tc.endpoint))
			require.Len(t, w.got.endpoints, 1)
			for _, e := range w.got.endpoints {
				require.Equal(t, tc.local, e.Local)
				require.Equal(t, tc.node, e.Node)
				require.Equal(t, tc.local, e.Sets.Has(model.LocalSet))
			}
		})
	}
}
