package localstate

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requireNothingKept requires that a State whose objects are all gone has no bookkeeping left (S14).
func requireNothingKept(t testing.TB, s *State) {
	t.Helper()
	require.Empty(t, s.services, "services")
	require.Empty(t, s.slices, "slices")
	require.Empty(t, s.held, "held")
	require.Empty(t, s.skipped, "skipped")
	require.Empty(t, s.triggers, "triggers")
	require.Empty(t, s.dirty, "dirty")
	require.Empty(t, s.node.cidrs, "cidrs")
	for _, svc := range s.dirty[:cap(s.dirty)] {
		require.Nil(t, svc, "a service that was dirty")
	}
	for _, c := range s.wave.candidates[:cap(s.wave.candidates)] {
		require.Nil(t, c.slice, "a slice in a buffer")
	}
	for _, b := range []*familyBuffers{&s.wave.families.IPv4, &s.wave.families.IPv6} {
		for _, e := range []*entries{&b.all, &b.difference.before, &b.difference.after} {
			for _, slice := range e.slices[:cap(e.slices)] {
				require.Nil(t, slice, "a slice in a buffer")
			}
		}
		for _, slice := range b.difference.unchanged[:cap(b.difference.unchanged)] {
			require.Nil(t, slice, "a slice in a buffer")
		}
	}
	for _, e := range s.wave.edits[:cap(s.wave.edits)] {
		require.Nil(t, e.value, "an endpoint in a buffer")
	}
	for _, e := range s.wave.sets[:cap(s.wave.sets)] {
		require.Nil(t, e, "an endpoint in a buffer")
	}
	for _, list := range s.wave.ports[:cap(s.wave.ports)] {
		require.Nil(t, list, "endpoints in a buffer")
	}
	require.Empty(t, s.limits.namespaces, "counted services")
	require.Empty(t, s.limits.due, "namespaces that are due")
	require.Zero(t, s.noLocal, "no local endpoints")
	require.Zero(t, s.pending, "pending")
}

func TestNoBookkeepingIsLeft(t *testing.T) {
	web := aService("web", vips("192.0.2.7"), sourceRanges("203.0.113.0/24"), internalLocal)
	slice := aSlice("web-1", ep("10.1.0.1", forZones("a")),
		annotated(corev1.EndpointsLastChangeTriggerTime, time.Now().Add(time.Hour).Format(time.RFC3339Nano)))
	headless := aService("headless", clusterIPs("None"))
	for _, tc := range []struct {
		name   string
		events func(w *world)
	}{
		{"the service goes first", func(w *world) {
			w.set(web, slice)
			w.flush()
			w.delete(web)
			w.flush()
			w.delete(slice)
		}},
		{"the slice goes first", func(w *world) {
			w.set(web, slice)
			w.flush()
			w.delete(slice)
			w.flush()
			w.delete(web)
		}},
		{"both go at once", func(w *world) { w.set(web, slice); w.flush(); w.delete(web, slice) }},
		{"they are added and deleted between two flushes", func(w *world) { w.set(web, slice); w.delete(slice, web) }},
		{"a slice without a service", func(w *world) { w.set(slice); w.flush(); w.delete(slice) }},
		{"a slice that moves before the flush", func(w *world) {
			moved := aSlice("web-1", ofService("api"), ep("10.1.0.1"))
			w.set(slice, moved)
			w.delete(moved)
		}},
		{"a slice that comes to be ignored", func(w *world) {
			w.set(slice)
			w.flush()
			w.set(aSlice("web-1", ofService("")))
		}},
		{"a service that is skipped", func(w *world) { w.set(headless); w.flush(); w.delete(headless) }},
		{"a service that comes to be skipped", func(w *world) {
			w.set(web, slice)
			w.flush()
			skipped := aService("web", clusterIPs("None"))
			w.set(skipped)
			w.flush()
			w.delete(skipped, slice)
		}},
		{"a skipped service that comes to be served", func(w *world) {
			w.set(headless, aService("headless"))
			w.flush()
			w.delete(headless)
		}},
		{"ServiceCIDRs", func(w *world) { w.set(aServiceCIDR("c", "10.0.0.0/16")); w.delete(aServiceCIDR("c")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			tc.events(w)
			w.flush()
			requireNothingKept(t, w.state)
			require.Empty(t, w.got.services)
			require.Empty(t, w.got.endpoints)
		})
	}
}

// TestNoObjectIsKept: the data that is needed is copied, so that the object can be freed.
func TestNoObjectIsKept(t *testing.T) {
	w := newWorld(t)
	var gone []func() bool // whether an object, or a part of it, has been collected
	hand := func() {
		service := aService("web", vips("192.0.2.7"), externalIPs("192.0.2.5"), sourceRanges("203.0.113.0/24"),
			externalLocal, healthCheck(30000))
		service.Labels, service.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
		headless := aService("headless", clusterIPs("None"))
		slice := aSlice("web-1", ep("10.1.0.1", local, forZones("a", "b"), forNodes(me)), ep("pod"))
		node := aNode(inZone("a"), internalIPs("192.0.2.1"), podCIDRs("10.1.0.0/24"))
		cidr := aServiceCIDR("c", "10.0.0.0/16")
		w.set(service, headless, slice, node, cidr)
		w.flush()
		watchObjects(&gone, service, headless)
		watchObjects(&gone, slice)
		watchObjects(&gone, node)
		watchObjects(&gone, cidr)
		watchObjects(&gone, &service.Spec.Ports[0])
		watchObjects(&gone, &service.Spec.ExternalIPs[0], &service.Spec.LoadBalancerSourceRanges[0])
		watchObjects(&gone, &slice.Endpoints[0])
		watchObjects(&gone, slice.Endpoints[0].Hints)
		watchObjects(&gone, &slice.Endpoints[0].Hints.ForZones[0])
		watchObjects(&gone, &slice.Endpoints[0].Hints.ForNodes[0])
		watchObjects(&gone, &slice.Ports[0])
		watchObjects(&gone, &node.Status.Addresses[0])
	}
	hand()
	runtime.GC()
	runtime.GC()
	for i, collected := range gone {
		require.True(t, collected(), "object %d is kept alive", i)
	}
	require.Len(t, w.endpoints("web"), 1)
	runtime.KeepAlive(w)
}

func watchObjects[T any](gone *[]func() bool, objects ...*T) {
	for _, obj := range objects {
		p := weak.Make(obj)
		*gone = append(*gone, func() bool { return p.Value() == nil })
	}
}

// TestObjectsAreNotWrittenTo: objects belong to the caller, which may share them.
func TestObjectsAreNotWrittenTo(t *testing.T) {
	service := aService("web", clusterIPs("fd00::1", "10.0.0.1"), vips("192.0.2.8", "192.0.2.7"),
		externalIPs("192.0.2.6", "192.0.2.5"), sourceRanges("203.0.114.0/24", "203.0.113.0/24"))
	service.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
	objects := []metav1.Object{service, aSlice("web-1", ep("10.1.0.2", forZones("b", "a")), ep("10.1.0.1")),
		aNode(podCIDRs("fd01::/64", "10.1.0.0/24")), aServiceCIDR("c", "fd00::/108", "10.0.0.0/16")}
	before := []metav1.Object{service.DeepCopy(), objects[1].(*discoveryv1.EndpointSlice).DeepCopy(),
		objects[2].(*corev1.Node).DeepCopy(), aServiceCIDR("c", "fd00::/108", "10.0.0.0/16")}
	w := newWorldWith(t, Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}}, objects...)
	w.delete(objects...)
	w.flush()
	require.Equal(t, before, objects)
}
