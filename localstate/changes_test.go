package localstate

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestNoNewsIsNoWork(t *testing.T) {
	base := []metav1.Object{
		aService("web", internalLocal),
		aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", onNode(other))),
		aNode(inZone("a"), internalIPs("192.0.2.1")),
		aServiceCIDR("kubernetes", "10.0.0.0/16"),
	}
	for _, tc := range []struct {
		name   string
		change func(w *world)
	}{
		{"S12 everything comes again as it was", func(w *world) { w.set(base...) }},
		{"S12 a service changes and changes back",
			func(w *world) { w.set(aService("web", ports(tcp("other", 81))), base[0]) }},
		{"S12 a service goes and comes back", func(w *world) { w.delete(base[0]); w.set(base[0]) }},
		{"S12 a service becomes headless and comes back", func(w *world) {
			w.set(aService("web", func(obj *corev1.Service) { obj.Spec.ClusterIP = "None" }), base[0])
		}},
		{"S12 a slice goes and comes back", func(w *world) { w.delete(base[1]); w.set(base[1]) }},
		{"S12 a slice moves to another service and back",
			func(w *world) { w.set(aSlice("web-1", ofService("api"), ep("10.1.0.1", local)), base[1]) }},
		{"S12 a service is added and deleted", func(w *world) { w.set(aService("api")); w.delete(aService("api")) }},
		{"S12 the node goes and comes back", func(w *world) { w.delete(base[2]); w.set(base[2]) }},
		{"S12 the node's zone changes and changes back", func(w *world) { w.set(aNode(inZone("b")), base[2]) }},
		{"S12 a ServiceCIDR goes and comes back", func(w *world) { w.delete(base[3]); w.set(base[3]) }},
		{"S14 metadata of a slice changes", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", onNode(other)),
				annotated("example.com/any", "1")))
		}},
		{"S14 the order in a slice changes", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.2", onNode(other)), ep("10.1.0.1", local)))
		}},
		{"S14 the endpoints are spread over two slices", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.2", onNode(other))), aSlice("web-2", ep("10.1.0.1", local)))
		}},
		{"S14 an endpoint changes that this node does not use",
			func(w *world) { w.set(aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.3", onNode(other)))) }},
		{"S14 a hint comes that changes nothing", func(w *world) {
			w.set(aSlice("web-1", ep("10.1.0.1", local, forZones("a")), ep("10.1.0.2", onNode(other))))
		}},
		{"S14 a slice comes without a service", func(w *world) {
			w.set(aSlice("api-1", ofService("api"), ep("10.1.0.9")))
		}},
		{"S14 a slice comes with no port of the service",
			func(w *world) { w.set(aSlice("web-2", slicePorts(slicePortObject("x", "TCP", 1)), ep("10.1.0.9"))) }},
		{"S14 what is not known goes", func(w *world) {
			require.False(w.t, w.delete(aService("nothing"), aSlice("nothing"), aServiceCIDR("nothing")))
		}},
		{"a field of a Service that does not matter here changes", func(w *world) {
			w.set(aService("web", internalLocal, func(obj *corev1.Service) {
				obj.Spec.Selector = map[string]string{"a": "b"}
			}))
		}},
		{"another node changes", func(w *world) {
			n := aNode(inZone("z"))
			n.Name = other
			require.False(w.t, w.set(n))
			require.False(w.t, w.delete(n))
		}},
		{"S2 a headless service comes", func(w *world) {
			w.set(aService("api", func(obj *corev1.Service) { obj.Spec.ClusterIP = "None" }))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, base...)
			require.Len(t, w.endpoints("web"), 1)
			tc.change(w)
			changes := w.flush()
			require.Empty(t, w.got.callTexts())
			require.Equal(t, Changes{}, changes)
		})
	}
}

func TestEventsTellWhetherTheyAreNews(t *testing.T) {
	web, slice, node, cidr := aService("web"), aSlice("web-1", ep("10.1.0.1")), aNode(inZone("a")),
		aServiceCIDR("kubernetes", "10.0.0.0/16")
	w := newWorld(t)
	for _, obj := range []metav1.Object{web, slice, node, cidr} {
		require.True(t, w.set(obj), "%T comes", obj)
		require.False(t, w.set(obj), "%T comes again", obj)
	}
	w.flush()
	for _, obj := range []metav1.Object{web, slice, node, cidr} {
		require.False(t, w.set(obj), "%T comes again", obj)
		require.True(t, w.delete(obj), "%T goes", obj)
		require.False(t, w.delete(obj), "%T goes again", obj)
	}
}

func TestObjectsThatPlayNoPart(t *testing.T) {
	w := newWorld(t)
	for _, deleted := range []bool{false, true} {
		changed, err := w.state.Apply(&corev1.Pod{}, deleted)
		require.ErrorContains(t, err, "*v1.Pod")
		require.False(t, changed)
	}
	require.Equal(t, Changes{}, w.flush())
}

func TestOrderWithinAWave(t *testing.T) {
	dns := aService("dns", clusterIPs("10.0.0.10"), ports(udp("dns", 53), tcp("dns", 53)))
	dnsSlice := func(addresses ...string) *discoveryv1.EndpointSlice {
		obj := aSlice("dns-1", ofService("dns"), slicePorts(slicePortObject("dns", "TCP", 5353),
			slicePortObject("dns", "UDP", 5353)))
		for _, a := range addresses {
			ep(a)(obj)
		}
		return obj
	}
	w := newWorld(t)
	w.set(dns, dnsSlice("10.1.0.1", "10.1.0.2"), aService("web"), aSlice("web-1", ep("10.1.1.1")),
		aService("zoo", clusterIPs("10.0.0.30")), aService("api", clusterIPs("10.0.0.40")))
	w.flush()
	require.Equal(t, []string{
		"set service ns/api",
		"set service ns/dns",
		"set endpoint ns/dns:dns/TCP -> 10.1.0.1:5353",
		"set endpoint ns/dns:dns/TCP -> 10.1.0.2:5353",
		"set endpoint ns/dns:dns/UDP -> 10.1.0.1:5353",
		"set endpoint ns/dns:dns/UDP -> 10.1.0.2:5353",
		"set service ns/web",
		"set endpoint ns/web:http/TCP -> 10.1.1.1:8080",
		"set service ns/zoo",
	}, w.got.callTexts(), "by name; the service before its endpoints")

	w.set(aNode(inZone("a")), aService("zoo", clusterIPs("10.0.0.31")), aService("bar", clusterIPs("10.0.0.20")),
		dnsSlice("10.1.0.2", "10.1.0.3"),
		aService("dns", clusterIPs("10.0.0.11"), ports(udp("dns", 53), tcp("dns", 53))))
	w.delete(aService("web"), aService("api"))
	w.flush()
	require.Equal(t, []string{
		"set node",
		"delete service ns/api",
		"delete endpoint ns/web:http/TCP -> 10.1.1.1:8080",
		"delete service ns/web",
		"set service ns/bar",
		"delete endpoint ns/dns:dns/TCP -> 10.1.0.1:5353",
		"delete endpoint ns/dns:dns/UDP -> 10.1.0.1:5353",
		"set service ns/dns",
		"set endpoint ns/dns:dns/TCP -> 10.1.0.3:5353",
		"set endpoint ns/dns:dns/UDP -> 10.1.0.3:5353",
		"set service ns/zoo",
	}, w.got.callTexts(), "the node, what goes, what comes or changes")

	w.set(aService("dns", clusterIPs("10.0.0.11"), ports(tcp("dns", 53), tcp("metrics", 9153))))
	w.flush()
	require.Equal(t, []string{
		"delete endpoint ns/dns:dns/UDP -> 10.1.0.2:5353",
		"delete endpoint ns/dns:dns/UDP -> 10.1.0.3:5353",
		"set service ns/dns",
	}, w.got.callTexts(), "a port goes: its endpoints before it")
}

func TestTheFirstFlushHandsTheNodeOver(t *testing.T) {
	state, err := New(t.Context(), Options{NodeName: me}, ClusterOptions{})
	require.NoError(t, err)
	require.False(t, state.Pending().Any())
	got := newMirror()
	changes := state.Flush(got)
	require.Equal(t, Changes{Node: true, Families: model.BothFamilies}, changes,
		"also of an empty cluster, which is a complete one")
	require.Equal(t, &model.Node{Name: me}, got.node)
	require.Equal(t, Changes{}, state.Flush(got), "and only the first")
}

func TestAReceiverThatDoesNotWantTheNode(t *testing.T) {
	w := newWorld(t)
	type onlyReceiver struct{ Receiver }
	w.set(aNode(inZone("a")))
	require.Equal(t, Changes{}, w.state.Flush(onlyReceiver{w.got}))
	require.Equal(t, "", w.got.node.Zone)
}

func TestPending(t *testing.T) {
	const v6 = discoveryv1.AddressTypeIPv6
	base := []metav1.Object{
		aService("web"), aSlice("web-1", ep("10.1.0.1")),
		aService("dual", clusterIPs("fd00::2", "10.0.0.2"), sourceRanges("192.0.2.0/24"), vips("198.51.100.1")),
		aSlice("dual-6", ofService("dual"), ofType(v6), ep("fd01::1", forZones("a"))),
	}
	for _, tc := range []struct {
		name string
		set  []metav1.Object
		del  []metav1.Object
		want Pending
	}{
		{"nothing", nil, nil, Pending{}},
		{"no change", base, nil, Pending{}},
		{"a service comes", []metav1.Object{aService("api")}, nil, Pending{Services: 1, Families: model.IPv4.Set()}},
		{"a service that is ignored comes", []metav1.Object{aService("api", clusterIPs("None"))}, nil, Pending{}},
		{"a dual-stack service changes", []metav1.Object{aService("dual", clusterIPs("10.0.0.2", "fd00::2"))}, nil,
			Pending{Services: 1, Families: model.BothFamilies}},
		{"a service loses a family: both are concerned", []metav1.Object{aService("dual", clusterIPs("10.0.0.2"))}, nil,
			Pending{Services: 1, Families: model.BothFamilies}},
		{"a service changes its family: both are concerned", []metav1.Object{aService("web", clusterIPs("fd00::1"))},
			nil, Pending{Services: 1, Families: model.BothFamilies}},
		{"a service goes", nil, []metav1.Object{aService("web")}, Pending{Services: 1, Families: model.IPv4.Set()}},
		{"a service changes twice", []metav1.Object{aService("web", nodePort(1)), aService("web", nodePort(2))}, nil,
			Pending{Services: 1, Families: model.IPv4.Set()}},
		{"a slice comes", []metav1.Object{aSlice("web-2", ofType(v6))}, nil,
			Pending{Endpoints: 1, Families: model.IPv6.Set()}},
		{"two slices of a service come: services are counted", []metav1.Object{aSlice("web-2"), aSlice("web-3")}, nil,
			Pending{Endpoints: 1, Families: model.IPv4.Set()}},
		{"a slice goes", nil, []metav1.Object{aSlice("dual-6")}, Pending{Endpoints: 1, Families: model.IPv6.Set()}},
		{"a slice is replaced by one of the other family: both are concerned",
			[]metav1.Object{aSlice("web-1", ofType(v6))}, nil, Pending{Endpoints: 1, Families: model.BothFamilies}},
		{"a slice moves to another service", []metav1.Object{aSlice("web-1", ofService("dual"))}, nil,
			Pending{Endpoints: 2, Families: model.IPv4.Set()}},
		{"a service and its slice", []metav1.Object{aService("web", nodePort(1)), aSlice("web-2")}, nil,
			Pending{Services: 1, Endpoints: 1, Families: model.IPv4.Set()}},
		{"the zone: services with hints", []metav1.Object{aNode(inZone("a"))}, nil,
			Pending{Endpoints: 1, Node: true, Families: model.BothFamilies}},
		{"the address: services with source ranges", []metav1.Object{aNode(internalIPs("192.0.2.1"))}, nil,
			Pending{Services: 1, Node: true, Families: model.BothFamilies}},
		{"the address, of a service that has no source ranges any more",
			[]metav1.Object{aService("dual", clusterIPs("fd00::2", "10.0.0.2"), vips("198.51.100.1")),
				aNode(internalIPs("192.0.2.1"))}, nil,
			Pending{Services: 1, Node: true, Families: model.BothFamilies}},
		{"a pod CIDR without its detector: no service", []metav1.Object{aNode(podCIDRs("10.1.0.0/24"))}, nil,
			Pending{Node: true, Families: model.BothFamilies}},
		{"a ServiceCIDR: no service", []metav1.Object{aServiceCIDR("c", "10.0.0.0/16")}, nil,
			Pending{Node: true, Families: model.BothFamilies}},
		{"the node goes: no service", nil, []metav1.Object{aNode()}, Pending{Node: true, Families: model.BothFamilies}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, base...)
			w.set(tc.set...)
			w.delete(tc.del...)
			require.Equal(t, tc.want, w.state.Pending())
			require.Equal(t, tc.want != Pending{}, w.state.Pending().Any())
			changes := w.flush()
			require.Zero(t, changes.Families&^tc.want.Families, "%+v were not pending", changes)
		})
	}
}

func TestPendingOfADetector(t *testing.T) {
	w := newWorldWith(t, Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}},
		aService("web"), aService("headless", clusterIPs("None")), aSlice("api-1", ofService("api"), ep("10.1.0.1")))
	w.set(aNode(podCIDRs("10.1.0.0/24")))
	require.Equal(t, Pending{Services: 1, Node: true, Families: model.BothFamilies}, w.state.Pending(),
		"services that are served, no others")
	w.flush()

	w.set(aService("dual", clusterIPs("10.0.0.2", "fd00::2"), vips("192.0.2.7"), sourceRanges("203.0.113.0/24")))
	w.flush()
	w.set(aService("dual", clusterIPs("10.0.0.2", "fd00::2"), vips("192.0.2.7")))
	w.flush()
	w.set(aNode(podCIDRs("10.1.0.0/24"), internalIPs("203.0.113.9")))
	require.Equal(t, Pending{Node: true, Families: model.BothFamilies}, w.state.Pending(),
		"source ranges that have gone")
}

func TestChanges(t *testing.T) {
	const v6 = discoveryv1.AddressTypeIPv6
	dual := clusterIPs("10.0.0.1", "fd00::1")
	w := newWorld(t, aService("web", dual), aSlice("web-4", ep("10.1.0.1")), aSlice("web-6", ofType(v6), ep("fd01::1")))
	for _, tc := range []struct {
		name string
		set  []metav1.Object
		del  []metav1.Object
		want Changes
	}{
		{"an IPv4 endpoint is replaced", []metav1.Object{aSlice("web-4", ep("10.1.0.2"))}, nil,
			Changes{Endpoints: 2, Families: model.IPv4.Set()}},
		{"an IPv6 endpoint comes", []metav1.Object{aSlice("web-6", ofType(v6), ep("fd01::1"), ep("fd01::2"))}, nil,
			Changes{Endpoints: 1, Families: model.IPv6.Set()}},
		{"the service changes", []metav1.Object{aService("web", dual, nodePort(1))}, nil,
			Changes{Services: 1, Families: model.BothFamilies}},
		{"the service loses IPv6", []metav1.Object{aService("web")}, nil,
			Changes{Services: 1, Endpoints: 2, Families: model.BothFamilies}},
		{"an IPv6 endpoint goes that is not used any more", []metav1.Object{aSlice("web-6", ofType(v6), ep("fd01::1"))},
			nil, Changes{}},
		{"a dual-stack service comes, its primary family is IPv6",
			[]metav1.Object{aService("api", clusterIPs("fd00::2", "10.0.0.2"))}, nil,
			Changes{Services: 1, Families: model.BothFamilies}},
		{"a service without endpoints loses IPv6", []metav1.Object{aService("api", clusterIPs("10.0.0.2"))}, nil,
			Changes{Services: 1, Families: model.BothFamilies}},
		{"the node", []metav1.Object{aNode(inZone("a"))}, nil, Changes{Node: true, Families: model.BothFamilies}},
		{"the service goes", nil, []metav1.Object{aService("web")},
			Changes{Services: 1, Endpoints: 1, Families: model.IPv4.Set()}},
	} {
		w.set(tc.set...)
		w.delete(tc.del...)
		changes := w.flush()
		require.Equal(t, tc.want, changes, tc.name)
		require.Equal(t, tc.want.Services+tc.want.Endpoints > 0 || tc.want.Node, changes.Any())
	}
}

func TestOneFamilyOnly(t *testing.T) {
	const v6 = discoveryv1.AddressTypeIPv6
	w := newWorldWith(t, Options{NodeName: me, Families: []model.Family{model.IPv6}})
	w.set(aNode(internalIPs("192.0.2.1", "2001:db8::1")), aServiceCIDR("kubernetes", "10.0.0.0/16", "fd00::/108"),
		aService("web", clusterIPs("10.0.0.1", "fd00::1"), externalIPs("192.0.2.5", "2001:db8::5"), nodePort(30080)),
		aSlice("web-4", ep("10.1.0.1")), aSlice("web-6", ofType(v6), ep("fd01::1")))
	require.Equal(t, Pending{Services: 1, Endpoints: 1, Node: true, Families: model.IPv6.Set()}, w.state.Pending())
	changes := w.flush()
	require.Equal(t, Changes{Services: 1, Endpoints: 1, Node: true, Families: model.IPv6.Set()}, changes)
	svc := w.mustService("web")
	require.Equal(t, []string{"fd00::1"}, texts(svc.ClusterIPs))
	require.Equal(t, []string{"2001:db8::5"}, texts(svc.ExternalIPs))
	require.Zero(t, svc.Ports[0].Routes.IPv4)
	require.NotZero(t, svc.Ports[0].Routes.IPv6)
	require.Equal(t, []string{"[fd01::1]:8080 Cluster"}, w.endpoints("web"))
	require.Equal(t, []string{"fd00::/108"}, texts(w.got.node.ServiceCIDRs))
}

func TestTriggerTimes(t *testing.T) {
	const annotation, v6 = "endpoints.kubernetes.io/last-change-trigger-time", discoveryv1.AddressTypeIPv6
	now := time.Now().Add(time.Hour) // later than the State
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	when := func(minutes int) sliceOption { return annotated(annotation, at(minutes).Format(time.RFC3339Nano)) }
	dual := aService("web", clusterIPs("10.0.0.1", "fd00::1"))
	slice := func(last string, options ...sliceOption) *discoveryv1.EndpointSlice {
		return aSlice("web-1", append(options, ep("10.1.0."+last))...)
	}
	slice6 := func(last string, options ...sliceOption) *discoveryv1.EndpointSlice {
		return aSlice("web-6", append(options, ofType(v6), ep("fd01::"+last))...)
	}
	for _, tc := range []struct {
		name   string
		events func(w *world)
		v4, v6 []int // minutes
	}{
		{"S19 the time of a change", func(w *world) { w.set(slice("2", when(1))) }, []int{1}, nil},
		{"S19 every change since the last Flush counts",
			func(w *world) { w.set(slice("2", when(1)), slice("3", when(2))) }, []int{1, 2}, nil},
		{"S19 of every slice", func(w *world) { w.set(slice("2", when(1)), aSlice("web-2", ep("10.1.0.9"), when(2))) },
			[]int{1, 2}, nil},
		{"S19 by family", func(w *world) { w.set(slice("2", when(1)), slice6("2", when(2))) }, []int{1}, []int{2}},
		{"S19 none without the annotation", func(w *world) { w.set(slice("2")) }, nil, nil},
		{"S19 none if it is malformed", func(w *world) { w.set(slice("2", annotated(annotation, "yesterday"))) }, nil,
			nil},
		{"S19 none if it is older than the State", func(w *world) {
			w.set(slice("2", annotated(annotation, time.Now().Add(-time.Hour).Format(time.RFC3339Nano))))
		}, nil, nil},
		{"S14 S19 none if the slice says the same as before", func(w *world) { w.set(slice("1", when(1))) }, nil, nil},
		{"S19 none if nothing is handed over", func(w *world) { w.set(slice("1", when(1), ep("10.1.0.9", unready))) },
			nil, nil},
		{"S19 none of the family in which nothing is handed over", func(w *world) {
			w.set(slice("2", when(1)), slice6("1", when(2), ep("fd01::9", unready)))
		}, []int{1}, nil},
		{"S19 ... whichever it is", func(w *world) {
			w.set(slice6("2", when(1)), slice("1", when(2), ep("10.1.0.9", unready)))
		}, nil, []int{1}},
		{"S19 a slice that goes drops the service's list", func(w *world) {
			w.set(slice("2", when(1)), aSlice("web-2", ep("10.1.0.9"), when(2)))
			w.delete(aSlice("web-2"))
		}, nil, nil},
		{"S19 what comes after it counts again", func(w *world) {
			w.set(slice("2", when(1)))
			w.delete(slice("2"))
			w.set(slice("3", when(2)))
		}, []int{2}, nil},
		{"S19 a slice that goes leaves the other family's list alone", func(w *world) {
			w.set(slice("2", when(1)), slice6("2", when(2)))
			w.delete(slice6("2"))
		}, []int{1}, nil},
		{"S19 a slice that goes leaves the lists of other services alone", func(w *world) {
			w.set(slice("2", when(1)), aSlice("api-1", ofService("api"), ep("10.1.0.9"), when(2)))
			w.delete(aSlice("api-1"))
		}, []int{1}, nil},
		{"S19 a slice that is not known changes no list", func(w *world) {
			w.set(slice("2", when(1)))
			w.delete(aSlice("web-9"))
		}, []int{1}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, dual, aService("api", clusterIPs("10.0.0.2")), slice("1"), slice6("1"))
			tc.events(w)
			changes := w.flush()
			for family, want := range map[model.Family][]int{model.IPv4: tc.v4, model.IPv6: tc.v6} {
				got := *changes.Triggers.At(family)
				require.Len(t, got, len(want), "%v", family)
				for i, minutes := range want {
					require.WithinDuration(t, at(minutes), got[i], 0)
				}
			}
			w.set(slice("200"), slice6("200"))
			changes = w.flush()
			require.Equal(t, model.PerFamily[[]time.Time]{}, changes.Triggers, "each time is reported once")
		})
	}
}

// While nothing is flushed, for example because a Sync hangs, only the oldest times are kept.
func TestTriggerTimesAreBounded(t *testing.T) {
	w := newWorld(t, aService("web"), aSlice("web-1", ep("10.1.0.1")))
	first := time.Now().Add(time.Hour)
	for i := range 2 * maxTriggers {
		at := first.Add(time.Duration(i) * time.Second).Format(time.RFC3339Nano)
		w.set(aSlice("web-1", ep(fmt.Sprintf("10.1.0.%d", 2+i%2)),
			annotated(corev1.EndpointsLastChangeTriggerTime, at)))
	}
	times := w.flush().Triggers.IPv4
	require.Len(t, times, maxTriggers)
	require.WithinDuration(t, first, times[0], 0)
}
