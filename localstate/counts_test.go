package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestHealthCheckCounts(t *testing.T) {
	const v6 = discoveryv1.AddressTypeIPv6
	lb := []serviceOption{vips("192.0.2.7"), externalLocal, healthCheck(30000), clusterIPs("10.0.0.1", "fd00::1")}
	for _, tc := range []struct {
		name    string
		options []serviceOption
		slices  []*discoveryv1.EndpointSlice
		v4, v6  int
	}{
		{"S38 none", nil, nil, 0, 0},
		{"S38 the ready endpoints of this node", nil, []*discoveryv1.EndpointSlice{aSlice("web-1",
			ep("10.1.0.1", local), ep("10.1.0.2", local), ep("10.1.0.3", onNode(other)), ep("10.1.0.4"),
			ep("10.1.0.5", local, unready), ep("10.1.0.6", local, servingUnready))}, 2, 0},
		{"S38 terminating ones are out, even while they get traffic", nil,
			[]*discoveryv1.EndpointSlice{aSlice("web-1", ep("10.1.0.1", local, draining))}, 0, 0},
		{"S38 unless they are ready, as under publishNotReadyAddresses", nil,
			[]*discoveryv1.EndpointSlice{aSlice("web-1", ep("10.1.0.1", local, readyTerminating))}, 1, 0},
		{"S38 an address with several ports counts once", []serviceOption{ports(tcp("http", 80), tcp("admin", 81))},
			[]*discoveryv1.EndpointSlice{aSlice("web-1",
				slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("admin", "TCP", 8081)),
				ep("10.1.0.1", local))}, 1, 0},
		{"S38 an address with several numbers of one port counts once", nil,
			[]*discoveryv1.EndpointSlice{aSlice("web-1",
				slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("http", "TCP", 8081)),
				ep("10.1.0.1", local))}, 1, 0},
		{"S38 over all ports: an address is enough that has one of them",
			[]serviceOption{ports(tcp("http", 80), tcp("admin", 81))}, []*discoveryv1.EndpointSlice{
				aSlice("web-1", ep("10.1.0.1", local)),
				aSlice("web-2", slicePorts(slicePortObject("admin", "TCP", 8081)), ep("10.1.0.2", local))}, 2, 0},
		{"S38 over all ports of the slices, whether the service has them or not", nil, []*discoveryv1.EndpointSlice{
			aSlice("web-1", slicePorts(slicePortObject("elsewhere", "TCP", 8080)), ep("10.1.0.1", local))}, 1, 0},
		{"S38 a port of an unknown protocol is none", nil,
			[]*discoveryv1.EndpointSlice{aSlice("web-1", slicePorts(slicePortObject("http", "DCCP", 8080)),
				ep("10.1.0.1", local))}, 0, 0},
		{"S38 a slice without ports has no endpoints", nil,
			[]*discoveryv1.EndpointSlice{aSlice("web-1", slicePorts(), ep("10.1.0.1", local))}, 0, 0},
		{"S38 the families are counted by themselves", nil, []*discoveryv1.EndpointSlice{
			aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", local)),
			aSlice("web-6", ofType(v6), ep("fd01::1", local))}, 2, 1},
		{"S2 S38 a family that the service does not have is not counted", []serviceOption{clusterIPs("10.0.0.1")},
			[]*discoveryv1.EndpointSlice{
				aSlice("web-1", ep("10.1.0.1", local)), aSlice("web-6", ofType(v6), ep("fd01::1", local))}, 1, 0},
		{"S17 S38 a duplicate that loses does not count", nil, []*discoveryv1.EndpointSlice{
			aSlice("web-1", ep("10.1.0.1", local, draining), ep("10.1.0.1"))}, 0, 0},
		{"S17 S38 an unready duplicate changes nothing", nil, []*discoveryv1.EndpointSlice{
			aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.1", local, unready))}, 1, 0},
		{"S38 topology does not matter", nil, []*discoveryv1.EndpointSlice{
			aSlice("web-1", ep("10.1.0.1", local, forZones("z")), ep("10.1.0.2", local, forZones("zone-a")))}, 2, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aNode(inZone("zone-a")), aService("web", append(lb[:4:4], tc.options...)...))
			for _, slice := range tc.slices {
				w.change([]metav1.Object{slice}...)
			}
			require.Equal(t, &model.HealthCheck{NodePort: 30000, LocalEndpoints: model.PerFamily[int]{IPv4: tc.v4, IPv6: tc.v6}},
				w.mustService("web").HealthCheck)
		})
	}

	t.Run("S38 the count follows the endpoints", func(t *testing.T) {
		w := newWorld(t, aService("web", lb...), aSlice("web-1", ep("10.1.0.1", local)))
		before := w.mustService("web")
		require.Equal(t, []string{"set service ns/web"},
			w.change(aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", local)))[:1])
		require.Equal(t, 2, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
		require.Equal(t, 1, before.HealthCheck.LocalEndpoints.IPv4, "what was handed over is not written to")
		w.change(aService("web", append(lb, healthCheck(0))...))
		require.Nil(t, w.mustService("web").HealthCheck)
	})
	t.Run("a service without a health check is not handed over again for a count", func(t *testing.T) {
		w := newWorld(t, aService("web"), aSlice("web-1", ep("10.1.0.1", local)))
		require.Equal(t, []string{"set endpoint ns/web:http/TCP -> 10.1.0.2:8080"},
			w.change(aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", local))))
	})
}

func TestNoLocalEndpoints(t *testing.T) {
	one4, one6 := model.PerFamily[int]{IPv4: 1}, model.PerFamily[int]{IPv6: 1}
	const v6 = discoveryv1.AddressTypeIPv6
	there, there6 := aSlice("web-1", ep("10.1.0.2", onNode(other))),
		aSlice("web-6", ofType(v6), ep("fd01::2", onNode(other)))
	dual := clusterIPs("10.0.0.1", "fd00::1")
	for _, tc := range []struct {
		name    string
		service *corev1.Service
		slices  []metav1.Object
		want    NoLocalEndpoints
	}{
		{"policy Cluster is not counted", aService("web", nodePort(30080)), []metav1.Object{there}, NoLocalEndpoints{}},
		{"internal Local with endpoints elsewhere only", aService("web", internalLocal), []metav1.Object{there},
			NoLocalEndpoints{Internal: one4}},
		{"external Local with endpoints elsewhere only", aService("web", externalLocal, nodePort(30080)),
			[]metav1.Object{there}, NoLocalEndpoints{External: one4}},
		{"external Local where nothing can come from outside is not counted", aService("web", externalLocal, vips()),
			[]metav1.Object{there}, NoLocalEndpoints{}},
		{"both", aService("web", internalLocal, externalLocal, nodePort(30080)), []metav1.Object{there},
			NoLocalEndpoints{one4, one4}},
		{"no endpoint anywhere is not counted", aService("web", internalLocal),
			[]metav1.Object{aSlice("web-1", ep("10.1.0.2", onNode(other), servingUnready))}, NoLocalEndpoints{}},
		{"terminating endpoints elsewhere are some", aService("web", internalLocal),
			[]metav1.Object{aSlice("web-1", ep("10.1.0.2", onNode(other), draining))},
			NoLocalEndpoints{Internal: one4}},
		{"a ready one here", aService("web", internalLocal),
			[]metav1.Object{there, aSlice("web-2", ep("10.1.0.1", local))}, NoLocalEndpoints{}},
		{"a terminating one here", aService("web", internalLocal),
			[]metav1.Object{there, aSlice("web-2", ep("10.1.0.1", local, draining))}, NoLocalEndpoints{}},
		{"one here that is of no use", aService("web", internalLocal),
			[]metav1.Object{there, aSlice("web-2", ep("10.1.0.1", local, unready))}, NoLocalEndpoints{Internal: one4}},
		{"by family", aService("web", dual, internalLocal, externalLocal, nodePort(30080)),
			[]metav1.Object{aSlice("web-1", ep("10.1.0.1", local)), there6},
			NoLocalEndpoints{one6, one6}},
		{"ports are counted", aService("web", internalLocal, ports(tcp("http", 80), tcp("admin", 81), tcp("none", 82))),
			[]metav1.Object{aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 8080),
				slicePortObject("admin", "TCP", 8081)), ep("10.1.0.2", onNode(other)))},
			NoLocalEndpoints{Internal: model.PerFamily[int]{IPv4: 2}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			another := []metav1.Object{aService("another", internalLocal),
				aSlice("another-1", ofService("another"), ep("10.1.0.9", onNode(other)))}
			w := newWorld(t, append(tc.slices, tc.service)...)
			require.Equal(t, tc.want, w.state.NoLocalEndpoints())
			w.change(another...)
			tc.want.Internal.IPv4++
			require.Equal(t, tc.want, w.state.NoLocalEndpoints(), "services are added up")
			w.set(aService("web", internalLocal, clusterIPs("None")))
			require.Equal(t, tc.want, w.state.NoLocalEndpoints(), "as of the last Flush")
			w.flush()
			require.Equal(t, NoLocalEndpoints{Internal: one4}, w.state.NoLocalEndpoints(),
				"a service that goes is not counted any more")
			w.delete(another...)
			w.flush()
			require.Zero(t, w.state.NoLocalEndpoints())
		})
	}
}
