package localstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

var holdingHeld = []model.ServiceName{{Namespace: namespace, Name: "held"}}

// manyHinted is a slice of 1,000 endpoints for three zones, the last of which has an address of its own.
func manyHinted(last string) *discoveryv1.EndpointSlice {
	var list []sliceOption
	for i := range 999 {
		list = append(list, ep(fmt.Sprintf("10.8.%d.%d", i/250, 1+i%250), forZones(fmt.Sprint("zone-", i%3))))
	}
	return aSlice("web-1", append(list, ep(last, forZones("zone-0")))...)
}

func TestZonesThatHintsNameAreReported(t *testing.T) {
	a := ep("10.1.0.1", forZones("a"))
	for _, tc := range []struct {
		name  string
		event func(w *world)
		want  map[string]bool
	}{
		{"nothing happens", func(*world) {}, nil},
		{"S22 a hint names another zone", func(w *world) { w.set(aSlice("web-2", ep("10.1.0.2", forZones("b")))) },
			map[string]bool{"b": true}},
		{"S22 a hint names several zones", func(w *world) { w.set(aSlice("web-2", ep("10.1.0.2", forZones("b", "a", "c")))) },
			map[string]bool{"b": true, "c": true}},
		{"S22 another slice names the same zone", func(w *world) { w.set(aSlice("web-2", a)) }, nil},
		{"S22 a hint for nodes names no zone", func(w *world) { w.set(aSlice("web-2", ep("10.1.0.2", forNodes("b")))) }, nil},
		{"S22 an empty name", func(w *world) { w.set(aSlice("web-2", ep("10.1.0.2", forZones("")))) }, nil},
		{"an endpoint is not ready", func(w *world) { w.set(aSlice("web-2", ep("10.1.0.2", unready, forZones("b")))) },
			map[string]bool{"b": true}},
		{"the Service does not exist",
			func(w *world) { w.set(aSlice("x", ofService("absent"), ep("10.1.0.2", forZones("b")))) },
			map[string]bool{"b": true}},
		{"the slice belongs to no Service",
			func(w *world) { w.set(aSlice("x", ofService(""), ep("10.1.0.2", forZones("b")))) }, nil},
		{"the slice is deleted", func(w *world) { w.delete(aSlice("web-1")) }, map[string]bool{"a": false}},
		{"the slice has other endpoints", func(w *world) { w.set(aSlice("web-1", a, ep("10.1.0.2", forZones("a")))) }, nil},
		{"the slice loses its hint", func(w *world) { w.set(aSlice("web-1", ep("10.1.0.1"))) }, map[string]bool{"a": false}},
		{"the slice gets another Service", func(w *world) { w.set(aSlice("web-1", ofService("b"), a)) }, nil},
		{"the slice comes back", func(w *world) {
			w.delete(aSlice("web-1"))
			w.set(aSlice("web-1", a))
		}, nil},
		{"a hint comes and goes", func(w *world) {
			w.set(aSlice("web-2", ep("10.1.0.2", forZones("b"))))
			w.delete(aSlice("web-2"))
		}, nil},
		{"S66 the last endpoint is held", func(w *world) { w.delete(aSlice("held-1")) }, nil},
		{"S66 a held endpoint is replaced", func(w *world) {
			w.delete(aSlice("held-1"))
			w.set(aSlice("held-1", ofService("held"), ep("10.2.0.2", forZones("b"))))
		}, map[string]bool{"b": true, "held": false}},
		{"S66 its Service is deleted", func(w *world) {
			w.delete(aSlice("held-1"))
			w.delete(aService("held"))
		}, map[string]bool{"held": false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects := []metav1.Object{aService("web"), aService("held"), aSlice("web-1", a),
				aSlice("held-1", ofService("held"), ep("10.2.0.1", forZones("held")))}
			opts := options{Options{}, ClusterOptions{HoldEndpoints: holdingHeld}}
			w := newWorldWith(t, opts, objects...)
			assert.Equal(t, map[string]bool{"a": true, "held": true}, w.state.ChangedZones())
			assert.Nil(t, w.state.ChangedZones())
			tc.event(w)
			assert.Equal(t, tc.want, w.state.ChangedZones())
			assert.Nil(t, w.state.ChangedZones())
		})
	}
}

// What a State counts bit by bit is what it finds when it is asked for the first time.
func TestNamedZonesDoNotDependOnHistory(t *testing.T) {
	for seed := range uint64(50) {
		d := testkit.Seeded(seed)
		opts := randomOptions(d)
		opts.NodeName, opts.NodeIPs, opts.DetectLocal = "", nil, DetectLocal{}
		early, late := newWorldWith(t, opts), newWorldWith(t, opts)
		named := map[string]bool{}
		follow := func() {
			for zone, is := range early.state.ChangedZones() {
				assert.NotEqual(t, named[zone], is, "it has changed")
				if named[zone] = is; !is {
					delete(named, zone)
				}
			}
		}
		follow()
		for range 60 {
			e := randomEvent(d)
			early.apply(e.obj, e.deleted)
			late.apply(e.obj, e.deleted)
			if testkit.OneIn(d, 3) {
				follow()
			}
		}
		follow()
		want := late.state.ChangedZones()
		if len(want) == 0 {
			want = map[string]bool{}
		}
		assert.Equal(t, want, named)
	}
}

// The cost of following the zones, for a slice of 1,000 endpoints of which one is replaced.
func BenchmarkChangeOfAHintedSlice(b *testing.B) {
	for _, follows := range []bool{false, true} {
		name := "zones not followed"
		if follows {
			name = "zones followed"
		}
		b.Run(name, func(b *testing.B) {
			w := newWorldWith(b, Options{}, aService("web"))
			if follows {
				w.state.ChangedZones()
			}
			slices := [2]*discoveryv1.EndpointSlice{manyHinted("10.9.0.1"), manyHinted("10.9.0.2")}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, _ = w.state.Apply(slices[i%2], false)
				w.state.Discard()
				if follows {
					w.state.ChangedZones()
				}
			}
		})
	}
}
