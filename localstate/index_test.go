package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// largeSlice is the n-th slice of service web, with 100 endpoints.
func largeSlice(n int, options ...sliceOption) *discoveryv1.EndpointSlice {
	obj := aSlice(fmt.Sprintf("web-%d", n))
	for i := range 100 {
		ep(largeAddr(n, i))(obj)
	}
	for _, option := range options {
		option(obj)
	}
	return obj
}

func largeAddr(n, i int) string { return fmt.Sprintf("10.%d.0.%d", n, i+1) }

// without removes an endpoint from a slice; those behind it move up, as when the EndpointSlice controller does it.
func without(addr string) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) {
		for i, e := range obj.Endpoints {
			if e.Addresses[0] == addr {
				obj.Endpoints = append(obj.Endpoints[:i:i], obj.Endpoints[i+1:]...)
				return
			}
		}
	}
}

// changed alters one endpoint of a slice.
func changed(addr string, option endpointOption) sliceOption {
	return func(obj *discoveryv1.EndpointSlice) {
		for i := range obj.Endpoints {
			if obj.Endpoints[i].Addresses[0] == addr {
				option(&obj.Endpoints[i])
			}
		}
	}
}

// TestChangesOfALargeService: only changes are passed on, and unchanged endpoints are examined only if the rules for
// all endpoints change.
func TestChangesOfALargeService(t *testing.T) {
	moved := largeAddr(1, 50)
	for _, tc := range []struct {
		name    string
		before  []metav1.Object
		change  []metav1.Object
		deleted []metav1.Object
		want    []string // calls
		all     bool     // all endpoints are looked at
	}{
		{"an endpoint goes, and others move up", nil, []metav1.Object{largeSlice(1, without(largeAddr(1, 0)))}, nil,
			[]string{"delete endpoint ns/web:http/TCP -> 10.1.0.1:8080"}, false},
		{"an endpoint comes", nil, []metav1.Object{largeSlice(1, ep("10.1.0.200"))}, nil,
			[]string{"set endpoint ns/web:http/TCP -> 10.1.0.200:8080"}, false},
		{"an endpoint is replaced", nil, []metav1.Object{largeSlice(1, without(moved), ep("10.0.0.1"))}, nil,
			[]string{"delete endpoint ns/web:http/TCP -> 10.1.0.51:8080",
				"set endpoint ns/web:http/TCP -> 10.0.0.1:8080"}, false},
		{"an endpoint goes to another slice", nil,
			[]metav1.Object{largeSlice(1, without(moved)), largeSlice(2, ep(moved))}, nil, nil, false},
		{"an endpoint is in two slices for a while", nil, []metav1.Object{largeSlice(2, ep(moved))}, nil, nil, false},
		{"one that was in two slices stays in the other", []metav1.Object{largeSlice(2, ep(moved))},
			[]metav1.Object{largeSlice(1, without(moved))}, nil, nil, false},
		{"one that was in two slices is now unready where it was not changed",
			[]metav1.Object{largeSlice(2, ep(moved, unready))},
			[]metav1.Object{largeSlice(1, without(moved))}, nil,
			[]string{"delete endpoint ns/web:http/TCP -> 10.1.0.51:8080"}, false},
		{"one that is in two slices moves from before the other to behind it",
			[]metav1.Object{largeSlice(2, ep(moved, onNode(other)))},
			[]metav1.Object{largeSlice(1, without(moved)), aSlice("web-3", ep(moved))}, nil,
			[]string{"set endpoint ns/web:http/TCP -> 10.1.0.51:8080"}, false},
		{"a slice goes", []metav1.Object{aSlice("web-3", ep("10.3.0.1"), ep("10.3.0.2"))}, nil,
			[]metav1.Object{aSlice("web-3")},
			[]string{"delete endpoint ns/web:http/TCP -> 10.3.0.1:8080",
				"delete endpoint ns/web:http/TCP -> 10.3.0.2:8080"}, false},
		{"a slice has another port number", []metav1.Object{aSlice("web-3", ep("10.3.0.1"))},
			[]metav1.Object{aSlice("web-3", ep("10.3.0.1"), slicePorts(slicePortObject("http", "TCP", 9090)))}, nil,
			[]string{"delete endpoint ns/web:http/TCP -> 10.3.0.1:8080",
				"set endpoint ns/web:http/TCP -> 10.3.0.1:9090"}, false},
		{"a slice comes that is as it was", nil, []metav1.Object{largeSlice(1)}, []metav1.Object{largeSlice(1)}, nil,
			false},
		{"the service has another label", nil, []metav1.Object{
			aService("web", func(obj *corev1.Service) { obj.Labels = map[string]string{"a": "b"} })}, nil,
			[]string{"set service ns/web"}, false},
		{"another port of the service", nil, []metav1.Object{aService("web", ports(tcp("http", 80), tcp("admin", 81)))},
			nil, []string{"set service ns/web"}, true},
		{"the first endpoint with a hint of many without", nil,
			[]metav1.Object{largeSlice(1, changed(moved, forZones("zone-b")))}, nil, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aNode(inZone("zone-a")), aService("web"), largeSlice(1), largeSlice(2))
			w.change(tc.before...)
			w.delete(tc.deleted...)
			w.set(tc.change...)
			w.flush()
			require.ElementsMatch(t, tc.want, w.got.callTexts())
			require.Equal(t, tc.all, w.state.wave.families.IPv4.allEntries)
			requireAsFromScratch(t, w)
		})
	}
}

// requireAsFromScratch requires the same result as that of a new State with the same slices.
func requireAsFromScratch(t *testing.T, w *world) {
	t.Helper()
	for _, svc := range w.state.services {
		if svc.index == nil {
			continue
		}
		before := w.got.String()
		svc.index = nil
		for _, f := range w.state.families {
			w.state.markEndpoints(svc, f)
		}
		w.flush()
		require.Equal(t, before, w.got.String())
	}
}

// TestRulesThatChangeForAll: a single endpoint can change the sets of all others.
func TestRulesThatChangeForAll(t *testing.T) {
	hinted := func(zone string) sliceOption {
		return func(obj *discoveryv1.EndpointSlice) {
			for i := range obj.Endpoints {
				forZones(zone)(&obj.Endpoints[i])
			}
		}
	}
	all := func(option endpointOption) sliceOption {
		return func(obj *discoveryv1.EndpointSlice) {
			for i := range obj.Endpoints {
				option(&obj.Endpoints[i])
			}
		}
	}
	t.Run("S22 the last hint that was missing", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web"), largeSlice(1, hinted("zone-a")),
			largeSlice(2, hinted("zone-b"), ep("10.9.0.1")))
		require.Len(t, w.clusterSet("web"), 201)
		w.change(largeSlice(2, hinted("zone-b"), ep("10.9.0.1", forZones("zone-a"))))
		require.Len(t, w.clusterSet("web"), 101)
		w.change(aNode(inZone("zone-b")))
		require.Len(t, w.clusterSet("web"), 100)
		w.change(largeSlice(2, hinted("zone-b")))
		require.Len(t, w.clusterSet("web"), 100)
		requireAsFromScratch(t, w)
	})
	t.Run("S24 another zone at the moment at which the hints go", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web"), largeSlice(1, hinted("zone-b")))
		w.set(largeSlice(1))
		w.change(aNode(inZone("zone-b")))
		require.Len(t, w.clusterSet("web"), 100)
		w.change(largeSlice(1, hinted("zone-a"), changed(largeAddr(1, 7), forZones("zone-b"))))
		require.Len(t, w.clusterSet("web"), 1)
		requireAsFromScratch(t, w)
	})
	t.Run("S21 the last ready endpoint", func(t *testing.T) {
		w := newWorld(t, aService("web"), largeSlice(1, all(draining)), aSlice("web-2", ep("10.9.0.1")))
		require.Equal(t, []string{"10.9.0.1:8080"}, w.clusterSet("web"))
		w.change(aSlice("web-2", ep("10.9.0.1", unready)))
		require.Len(t, w.clusterSet("web"), 100)
		w.change(aSlice("web-2", ep("10.9.0.1")))
		require.Equal(t, []string{"10.9.0.1:8080"}, w.clusterSet("web"))
		requireAsFromScratch(t, w)
	})
	t.Run("S9 another traffic policy", func(t *testing.T) {
		w := newWorld(t, aService("web"), largeSlice(1, changed(largeAddr(1, 7), local)))
		w.change(aService("web", internalLocal))
		require.Equal(t, []string{"10.1.0.8:8080 Local"}, w.endpoints("web"))
		require.Equal(t, model.LocalSet, w.routes("web").ClusterIP.Endpoints)
		requireAsFromScratch(t, w)
	})
	t.Run("S38 the count of local endpoints follows", func(t *testing.T) {
		lb := aService("web", vips("192.0.2.7"), externalLocal, healthCheck(30000))
		w := newWorld(t, lb, largeSlice(1, changed(largeAddr(1, 7), local)), largeSlice(2))
		require.Equal(t, 1, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
		w.change(largeSlice(2, changed(largeAddr(2, 7), local), ep(largeAddr(1, 7), local)))
		require.Equal(t, 2, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
		w.change(largeSlice(1))
		require.Equal(t, 1, w.mustService("web").HealthCheck.LocalEndpoints.IPv4,
			"where both slices have it, the first one counts")
		w.change(largeSlice(1, without(largeAddr(1, 7))))
		require.Equal(t, 2, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
		requireAsFromScratch(t, w)
	})
}

// TestALargeServiceThatShrinks: the service loses its index.
func TestALargeServiceThatShrinks(t *testing.T) {
	w := newWorld(t, aService("web"), largeSlice(1))
	svc := w.state.services[model.ServiceName{Namespace: namespace, Name: "web"}]
	require.NotNil(t, svc.index)
	w.change(aSlice("web-1", ep("10.1.0.1")))
	require.Nil(t, svc.index)
	require.Equal(t, []string{"10.1.0.1:8080 Cluster"}, w.endpoints("web"))
	w.change(largeSlice(1))
	require.NotNil(t, svc.index)
	w.delete(aService("web"))
	w.flush()
	require.Nil(t, svc.index)
	w.change(aSlice("web-2", ep("10.2.0.1")), aService("web"))
	require.Len(t, w.clusterSet("web"), 101)
	w.delete(aService("web"), aSlice("web-1"), aSlice("web-2"))
	w.flush()
	requireNothingKept(t, w.state)
}
