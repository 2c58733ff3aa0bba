package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// described sets all the details of an endpoint.
func described(pod, zone string) endpointOption {
	return func(e *discoveryv1.Endpoint) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod, UID: "uid-1",
			ResourceVersion: "5"}
		e.Hostname, e.Zone = ptr.To("host-1"), &zone
		forZones("zone-a", "zone-b")(e)
		forNodes(other)(e)
	}
}

func TestEndpointDetailsOnRequest(t *testing.T) {
	objects := []metav1.Object{aService("web"), aSlice("web-1", ep("10.1.0.1", described("web-0", "zone-a")),
		ep("10.1.0.2"))}
	w := newWorld(t, objects...)
	for _, e := range w.got.sortedEndpoints() {
		require.True(t, e.Details.IsZero(), "nobody asked for them")
	}
	require.Empty(t, w.change(aSlice("web-1", ep("10.1.0.1", described("web-1", "zone-c")), ep("10.1.0.2"))),
		"nor do they count as a change")

	w = newWorldWith(t, options{Options{NodeName: me}, ClusterOptions{EndpointDetails: true}}, objects...)
	first, second := w.got.sortedEndpoints()[0], w.got.sortedEndpoints()[1]
	require.Equal(t, model.EndpointDetails{
		TargetRef: model.TargetRef{Kind: "Pod", Namespace: namespace, Name: "web-0", UID: "uid-1"},
		Hostname:  "host-1", Zone: "zone-a", NodeHints: []string{other}, ZoneHints: []string{"zone-a", "zone-b"},
	}, first.Details.Get())
	require.True(t, second.Details.IsZero(), "it has none")
	require.Equal(t, []string{"set endpoint ns/web:http/TCP -> 10.1.0.1:8080"},
		w.change(aSlice("web-1", ep("10.1.0.1", described("web-1", "zone-a")), ep("10.1.0.2"))),
		"another pod with the same address")
	require.Equal(t, "web-0", first.Details.Get().TargetRef.Name, "what was handed over is not written to")
}

func TestDrainingEndpointsOnRequest(t *testing.T) {
	slice := aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("dns", "UDP", 53)),
		ep("10.1.0.1"), ep("10.1.0.2", draining), ep("10.1.0.3", dead), ep("10.1.0.4", servingUnready),
		ep("10.1.0.5", unready))
	service := aService("web", ports(tcp("http", 80), udp("dns", 53)))
	udpEndpoints := []string{"dns/UDP 10.1.0.1:53 Cluster", "dns/UDP 10.1.0.2:53 -", "dns/UDP 10.1.0.4:53 -"}

	w := newWorld(t, service, slice)
	require.Equal(t, append(udpEndpoints, "http/TCP 10.1.0.1:8080 Cluster"), w.endpoints("web"))
	w = newWorldWith(t, Options{NodeName: me, DrainingEndpoints: true}, service, slice)
	require.Equal(t, append(udpEndpoints, "http/TCP 10.1.0.1:8080 Cluster", "http/TCP 10.1.0.2:8080 -"),
		w.endpoints("web"))
	require.True(t, w.got.endpoints[model.EndpointKey{
		Port: model.PortName{Service: model.ServiceName{Namespace: namespace, Name: "web"},
			Port: "http", Protocol: model.TCP},
		Target: w.got.sortedEndpoints()[4].Target,
	}].Draining())

	// It is the same endpoint for its whole life: ready, draining, gone.
	w = newWorldWith(t, Options{NodeName: me, DrainingEndpoints: true}, aService("web"),
		aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2")))
	require.Equal(t, []string{"set endpoint ns/web:http/TCP -> 10.1.0.2:8080"},
		w.change(aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2", draining))))
	require.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 -"}, w.endpoints("web"))
	require.Equal(t, []string{"set endpoint ns/web:http/TCP -> 10.1.0.1:8080",
		"set endpoint ns/web:http/TCP -> 10.1.0.2:8080"},
		w.change(aSlice("web-1", ep("10.1.0.1", draining), ep("10.1.0.2", draining))),
		"S21: now they are the last resort")
	require.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster"}, w.endpoints("web"))
	require.Equal(t, []string{"delete endpoint ns/web:http/TCP -> 10.1.0.2:8080"},
		w.change(aSlice("web-1", ep("10.1.0.1", draining), ep("10.1.0.2", dead))))
}

func TestHeadlessServicesOnRequest(t *testing.T) {
	headless := func(families ...corev1.IPFamily) *corev1.Service {
		obj := aService("web", clusterIPs("None"))
		obj.Spec.IPFamilies = families
		return obj
	}
	ofHeadless := func(obj *discoveryv1.EndpointSlice) { obj.Labels[corev1.IsHeadlessService] = "" }
	slices := []metav1.Object{
		aSlice("web-1", ofHeadless, ep("10.1.0.1", forZones("zone-b")), ep("10.1.0.2", local, forZones("zone-a")),
			ep("10.1.0.3", unready), ep("10.1.0.4", draining)),
		aSlice("web-6", ofHeadless, ofType(discoveryv1.AddressTypeIPv6), ep("fd01::1")),
	}
	for _, tc := range []struct {
		name     string
		families []corev1.IPFamily
		want     []string
	}{
		{"all ready endpoints, whatever the topology", []corev1.IPFamily{"IPv4", "IPv6"},
			[]string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster", "[fd01::1]:8080 Cluster"}},
		{"of its families", []corev1.IPFamily{"IPv6"}, []string{"[fd01::1]:8080 Cluster"}},
		{"of any, if it names none", nil, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster",
			"[fd01::1]:8080 Cluster"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldWith(t, options{Options{NodeName: me}, ClusterOptions{HeadlessServices: true}},
				append(slices, aNode(inZone("zone-a")), headless(tc.families...))...)
			svc := w.mustService("web")
			require.True(t, svc.Headless)
			require.Empty(t, svc.ClusterIPs)
			require.Equal(t, model.Routes{}, svc.Ports[0].Routes.IPv4)
			require.Equal(t, tc.want, w.endpoints("web"))
			require.Empty(t, w.got.checkForm())
			require.Empty(t, checkExplanations(w.state, w.got))

			// A Service may become an ordinary one and back, although the API server does not allow it.
			w.change(aService("web"))
			require.Equal(t, []string{"10.1.0.2:8080 Cluster"}, w.endpoints("web"), "now topology counts")
			w.change(headless(tc.families...))
			require.Equal(t, tc.want, w.endpoints("web"))
			w.delete(headless())
			w.flush()
			require.Empty(t, w.got.endpoints)
		})
	}
	w := newWorld(t, append(slices, headless())...)
	require.Nil(t, w.service("web"), "nobody asked for it")
	require.Nil(t, newWorldWith(t, options{Options{NodeName: me, Families: []model.Family{model.IPv4}},
		ClusterOptions{HeadlessServices: true}},
		headless("IPv6")).service("web"),
		"this node does not serve its family")
}

func TestExternalNameServicesOnRequest(t *testing.T) {
	named := func(name string) *corev1.Service {
		return aService("web", clusterIPs(""), typed(corev1.ServiceTypeExternalName),
			func(obj *corev1.Service) { obj.Spec.ExternalName = name })
	}
	require.Nil(t, newWorld(t, named("www.example.com")).service("web"), "nobody asked for it")
	w := newWorldWith(t, options{Options{NodeName: me}, ClusterOptions{ExternalNameServices: true}},
		named("www.example.com"),
		aSlice("web-1", ep("10.1.0.1")))
	require.Equal(t, "www.example.com", w.mustService("web").ExternalName)
	require.Equal(t, model.ServiceTypeExternalName, w.mustService("web").Type)
	require.Empty(t, w.endpoints("web"))
	require.Empty(t, w.got.checkForm())
	require.Equal(t, []string{"set service ns/web"}, w.change(named("other.example.com")))
	w.change(named(""))
	require.Nil(t, w.service("web"))
	explanation, _ := w.state.Explain(model.ServiceName{Namespace: namespace, Name: "web"})
	require.Equal(t, "type ExternalName without an external name", explanation.Skipped)
}

func TestFieldsForPeopleAndExtensionsArePassedOn(t *testing.T) {
	service := func(change func(*corev1.Service)) *corev1.Service {
		return aService("web", vips("192.0.2.7"), func(obj *corev1.Service) {
			obj.Spec.LoadBalancerClass = ptr.To("example.com/appliance")
			obj.Spec.Ports = []corev1.ServicePort{tcp("a", 80), tcp("b", 81), tcp("c", 82)}
			obj.Spec.Ports[0].AppProtocol, obj.Spec.Ports[0].TargetPort = ptr.To("kubernetes.io/h2c"),
				intstr.FromString("http")
			obj.Spec.Ports[1].TargetPort = intstr.FromInt32(8081)
			change(obj)
		})
	}
	w := newWorld(t, service(func(*corev1.Service) {}))
	got := w.mustService("web")
	require.Equal(t, model.ServiceTypeLoadBalancer, got.Type)
	require.Equal(t, "example.com/appliance", got.LoadBalancerClass)
	require.Equal(t, []string{"kubernetes.io/h2c http", " 8081", " "}, []string{
		got.Ports[0].AppProtocol + " " + got.Ports[0].TargetPort,
		got.Ports[1].AppProtocol + " " + got.Ports[1].TargetPort,
		got.Ports[2].AppProtocol + " " + got.Ports[2].TargetPort,
	})
	for name, change := range map[string]func(*corev1.Service){
		"type":         func(obj *corev1.Service) { obj.Spec.Type = corev1.ServiceTypeNodePort },
		"class":        func(obj *corev1.Service) { obj.Spec.LoadBalancerClass = nil },
		"app protocol": func(obj *corev1.Service) { obj.Spec.Ports[1].AppProtocol = ptr.To("https") },
		"target port":  func(obj *corev1.Service) { obj.Spec.Ports[1].TargetPort = intstr.FromString("8081x") },
	} {
		require.Equal(t, []string{"set service ns/web"}, w.change(service(change)), name)
		w.change(service(func(*corev1.Service) {}))
	}
	require.Equal(t, model.ServiceTypeClusterIP, newWorld(t, aService("web", typed(""))).mustService("web").Type, "S11")
	require.Equal(t, model.ServiceTypeNodePort, newWorld(t, aService("web", nodePort(30080))).mustService("web").Type)
}
