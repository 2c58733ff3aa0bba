package localstate

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// TestHardCases has the cases that re-implementations of kube-proxy get wrong, as far as they are decided here.
// testing/conformance tests the effect on packets, for every backend: above all 11 to 15, 22 and 25 have a second half
// there. 27, a partial update that fails, concerns only Run and the backends: the root package and testing/conformance
// test it.
func TestHardCases(t *testing.T) {
	v4 := func(addresses ...string) []string {
		out := []string{}
		for _, a := range addresses {
			out = append(out, a+":8080")
		}
		return out
	}
	detect := DetectLocal{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	inZoneA := aNode(inZone("zone-a"))
	here, there := local, onNode(other)

	for _, tc := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"01 one unhinted Ready endpoint disables topology; unready ones do not count", func(t *testing.T) {
			w := newWorld(t, inZoneA, aService("web"),
				aSlice("web-1", ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b")),
					ep("10.1.0.3", unready)))
			require.Equal(t, v4("10.1.0.1"), w.clusterSet("web"))
			w.change(aSlice("web-2", ep("10.1.0.4")))
			require.Equal(t, v4("10.1.0.1", "10.1.0.2", "10.1.0.4"), w.clusterSet("web"))
			w.change(aSlice("web-2", ep("10.1.0.4", draining)))
			require.Equal(t, v4("10.1.0.1"), w.clusterSet("web"))
		}},
		{"02 same node, then same zone, then all, per client node", func(t *testing.T) {
			slice := aSlice("web-1",
				ep("10.1.0.1", forNodes("n1"), forZones("z1")), ep("10.1.0.2", forNodes("n2"), forZones("z1")),
				ep("10.1.0.3", forNodes("n3"), forZones("z3")))
			for _, node := range []struct {
				name, zone string
				want       []string
			}{
				{"n1", "z1", v4("10.1.0.1")},
				{"n2", "z9", v4("10.1.0.2")},
				{"n4", "z1", v4("10.1.0.1", "10.1.0.2")},
				{"n4", "z3", v4("10.1.0.3")},
				{"n4", "z9", v4("10.1.0.1", "10.1.0.2", "10.1.0.3")},
				{"n4", "", v4("10.1.0.1", "10.1.0.2", "10.1.0.3")},
			} {
				obj := aNode(inZone(node.zone))
				obj.Name = node.name
				w := newWorldWith(t, Options{NodeName: node.name}, aService("web"), slice, obj)
				require.Equal(t, node.want, w.clusterSet("web"), "%+v", node)
			}
		}},
		{"03 a hinted zone with only unready endpoints: no filter", func(t *testing.T) {
			w := newWorld(t, inZoneA, aService("web"), aSlice("web-1",
				ep("10.1.0.1", forZones("zone-a"), unready), ep("10.1.0.2", forZones("zone-b")),
				ep("10.1.0.3", forZones("zone-c"))))
			require.Equal(t, v4("10.1.0.2", "10.1.0.3"), w.clusterSet("web"))
			w.change(aSlice("web-1", ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b")),
				ep("10.1.0.3", forZones("zone-c"))))
			require.Equal(t, v4("10.1.0.1"), w.clusterSet("web"))
		}},
		{"04 external Local with hints: the union includes local endpoints of another zone", func(t *testing.T) {
			w := newWorld(t, inZoneA, aService("web", nodePort(30080), externalLocal), aSlice("web-1",
				ep("10.1.0.1", there, forZones("zone-a")), ep("10.1.0.2", here, forZones("zone-b")),
				ep("10.1.0.3", there, forZones("zone-b"))))
			require.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Local"}, w.endpoints("web"))
		}},
		{"05 the local set falls back to terminating while the cluster set stays ready", func(t *testing.T) {
			w := newWorld(t, aService("web", nodePort(30080), externalLocal),
				aSlice("web-1", ep("10.1.0.1", here, draining), ep("10.1.0.2", there)))
			require.Equal(t, []string{"10.1.0.1:8080 Local", "10.1.0.2:8080 Cluster"}, w.endpoints("web"))
		}},
		{"06 external Local is ignored where the service is not externally accessible", func(t *testing.T) {
			for _, service := range []*corev1.Service{aService("web", externalLocal),
				aService("web", externalLocal, vips())} {
				w := newWorld(t, service, aSlice("web-1", ep("10.1.0.1", here), ep("10.1.0.2", there)))
				require.Equal(t, []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster"}, w.endpoints("web"))
				require.True(t, w.routes("web").External.IsZero())
			}
		}},
		{"07 internal Local, internal only: the cluster set is nil, yet has-any is true", func(t *testing.T) {
			w := newWorld(t, aService("web", internalLocal), aSlice("web-1", ep("10.1.0.2", there)))
			require.Empty(t, w.endpoints("web"))
			require.Equal(t, model.Drop, w.routes("web").ClusterIP.Empty)
		}},
		{"08 terminating endpoints only elsewhere: the cluster IP reaches them; external Local drops, not rejects",
			func(t *testing.T) {
				w := newWorld(t, aService("web", nodePort(30080), externalLocal),
					aSlice("web-1", ep("10.1.0.2", there, draining)))
				require.Equal(t, []string{"10.1.0.2:8080 Cluster"}, w.endpoints("web"))
				require.Equal(t, model.ClusterSet, w.routes("web").ClusterIP.Endpoints)
				require.Equal(t, model.Route{Endpoints: model.LocalSet, Masquerade: model.MasqueradeNever,
					Empty: model.Drop}, w.routes("web").External)
			}},
		{"09 terminating and not serving everywhere: reject", func(t *testing.T) {
			w := newWorld(t, aService("web", nodePort(30080), externalLocal, internalLocal),
				aSlice("web-1", ep("10.1.0.1", here, dead), ep("10.1.0.2", there, dead)))
			require.Empty(t, w.endpoints("web"))
			r := w.routes("web")
			for _, route := range []model.Route{r.ClusterIP, r.External, r.ExternalFromPod, r.ExternalFromNode} {
				require.Equal(t, model.Reject, route.Empty)
			}
		}},
		{"10 the health-check count excludes terminating endpoints while they still get traffic; it counts addresses",
			func(t *testing.T) {
				web := aService("web", vips("192.0.2.7"), externalLocal, healthCheck(30000),
					ports(tcp("http", 80), tcp("https", 443)))
				both := slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("https", "TCP", 8443))
				w := newWorld(t, web, aSlice("web-1", both, ep("10.1.0.1", here), ep("10.1.0.2", here)))
				require.Equal(t, 2, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
				w.change(aSlice("web-1", both, ep("10.1.0.1", here, draining), ep("10.1.0.2", here, draining)))
				require.Equal(t, 0, w.mustService("web").HealthCheck.LocalEndpoints.IPv4)
				require.Len(t, w.localSet("web"), 4)
			}},
		{"11 pod to VIP with external Local: all endpoints, no SNAT; without a detector: local only",
			func(t *testing.T) {
				web := aService("web", vips("192.0.2.7"), externalLocal)
				slice := aSlice("web-1", ep("10.1.0.1", here), ep("10.1.0.2", there))
				w := newWorldWith(t, Options{NodeName: me, DetectLocal: detect}, web, slice)
				require.Equal(t, model.Route{Endpoints: model.ClusterSet, Masquerade: model.MasqueradeNever,
					Empty: model.Reject}, w.routes("web").ExternalFromPod)
				require.Len(t, w.clusterSet("web"), 2)
				w = newWorld(t, web, slice)
				require.Equal(t, model.Route{Endpoints: model.LocalSet, Masquerade: model.MasqueradeNever,
					Empty: model.Drop}, w.routes("web").ExternalFromPod)
			}},
		{"12 node to nodePort with external Local: all endpoints, with SNAT", func(t *testing.T) {
			for _, opts := range []Options{{NodeName: me}, {NodeName: me, DetectLocal: detect}} {
				w := newWorldWith(t, opts, aService("web", nodePort(30080), externalLocal),
					aSlice("web-1", ep("10.1.0.1", here), ep("10.1.0.2", there)))
				require.Equal(t, model.Route{Endpoints: model.ClusterSet, Masquerade: model.MasqueradeAlways,
					Empty: model.Reject}, w.routes("web").ExternalFromNode)
				require.Len(t, w.clusterSet("web"), 2)
			}
		}},
		{"13 external to cluster IP with internal Local: local endpoint, still SNATed", func(t *testing.T) {
			w := newWorldWith(t, Options{NodeName: me, DetectLocal: detect}, aService("web", internalLocal),
				aSlice("web-1", ep("10.1.0.1", here), ep("10.1.0.2", there)))
			require.Equal(t, model.Route{Endpoints: model.LocalSet, Masquerade: model.MasqueradeUnlessLocalPod,
				Empty: model.Drop}, w.routes("web").ClusterIP)
		}},
		{"14 masqueradeAll does not SNAT pod to VIP with external Local", func(t *testing.T) {
			w := newWorldWith(t, Options{NodeName: me, DetectLocal: detect, MasqueradeAll: true},
				aService("web", vips("192.0.2.7"), externalLocal))
			require.Equal(t, model.MasqueradeAlways, w.routes("web").ClusterIP.Masquerade)
			require.Equal(t, model.MasqueradeNever, w.routes("web").ExternalFromPod.Masquerade)
		}},
		{"15 the VIP is an allowed source only if the node's IP is in a range", func(t *testing.T) {
			w := newWorld(t, aNode(internalIPs("203.0.113.9")),
				aService("web", vips("192.0.2.7"), sourceRanges("203.0.113.0/24")))
			require.Equal(t, []string{"192.0.2.7/32", "203.0.113.0/24"},
				texts(w.mustService("web").LoadBalancerSourceRanges))
			w.change(aNode(internalIPs("198.51.100.9")))
			require.Equal(t, []string{"203.0.113.0/24"}, texts(w.mustService("web").LoadBalancerSourceRanges))
		}},
		{"16 ipMode Proxy: the VIP is not programmed, the nodePort is kept", func(t *testing.T) {
			w := newWorld(t, aService("web", nodePort(30080), typed(corev1.ServiceTypeLoadBalancer),
				func(obj *corev1.Service) {
					obj.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
						{IP: "192.0.2.7", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
				}))
			require.Empty(t, w.mustService("web").LoadBalancerIPs)
			require.EqualValues(t, 30080, w.mustService("web").Ports[0].NodePort)
			require.False(t, w.routes("web").External.IsZero())
		}},
		{"17 a duplicate endpoint, in the order terminating, live, terminating, is live", func(t *testing.T) {
			entries := []sliceOption{ep("10.1.0.1", onNode("a"), draining), ep("10.1.0.1", onNode("b")),
				ep("10.1.0.1", onNode("c"), draining)}
			inOne := newWorld(t, aService("web"), aSlice("web-1", entries...))
			inThree := newWorld(t, aService("web"), aSlice("web-1", entries[0]), aSlice("web-2", entries[1]),
				aSlice("web-3", entries[2]))
			for _, w := range []*world{inOne, inThree} {
				require.Equal(t, v4("10.1.0.1"), w.clusterSet("web"))
				require.Equal(t, "b", w.got.sortedEndpoints()[0].Node)
			}
		}},
		{"18 an endpoint moved from one slice to another between syncs does not flap", func(t *testing.T) {
			old := []metav1.Object{aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2")), aSlice("web-2", ep("10.1.0.3"))}
			moved := []metav1.Object{aSlice("web-1", ep("10.1.0.1")), aSlice("web-2", ep("10.1.0.2"), ep("10.1.0.3"))}
			forEachOrder(moved, func(moved []metav1.Object) {
				w := newWorld(t, append(old, aService("web"))...)
				require.Empty(t, w.change(moved...))
			})
			w := newWorld(t, append(old, aService("web"))...)
			require.Empty(t, w.change(moved[1]), "nor if it is in both slices for a while")
			require.Empty(t, w.change(moved[0]))
		}},
		{"19 add, delete, add keeps only the last trigger time", func(t *testing.T) {
			first, last := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
			at := func(at time.Time) sliceOption {
				return annotated(corev1.EndpointsLastChangeTriggerTime, at.Format(time.RFC3339Nano))
			}
			w := newWorld(t, aService("web"))
			w.set(aSlice("web-1", ep("10.1.0.1"), at(first)))
			w.delete(aSlice("web-1"))
			w.set(aSlice("web-1", ep("10.1.0.1"), at(last)))
			triggers := w.flush().Triggers.IPv4
			require.Len(t, triggers, 1)
			require.WithinDuration(t, last, triggers[0], 0)
		}},
		{"20 the same port number with three protocols: no cross-talk", func(t *testing.T) {
			web := aService("web", ports(tcp("dns", 53), udp("dns", 53), sctp("dns", 53)))
			w := newWorld(t, web,
				aSlice("web-1", slicePorts(slicePortObject("dns", "TCP", 53)), ep("10.1.0.1")),
				aSlice("web-2", slicePorts(slicePortObject("dns", "UDP", 53)), ep("10.1.0.2")),
				aSlice("web-3", slicePorts(slicePortObject("dns", "SCTP", 53)), ep("10.1.0.3")))
			require.Equal(t, []string{"dns/TCP 10.1.0.1:53 Cluster", "dns/UDP 10.1.0.2:53 Cluster",
				"dns/SCTP 10.1.0.3:53 Cluster"}, w.endpoints("web"))
			w.change(aService("web", ports(tcp("dns", 53), sctp("dns", 53))))
			require.Equal(t, []string{"dns/TCP 10.1.0.1:53 Cluster", "dns/SCTP 10.1.0.3:53 Cluster"},
				w.endpoints("web"))
			require.Equal(t, []string{"set service ns/web", "set endpoint ns/web:dns/UDP -> 10.1.0.2:53"},
				w.change(web))
		}},
		{"21 named target ports that resolve to different numbers per pod", func(t *testing.T) {
			w := newWorld(t, aService("web"),
				aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.3")),
				aSlice("web-2", slicePorts(slicePortObject("http", "TCP", 9090)), ep("10.1.0.2")))
			require.Equal(t, []string{"10.1.0.1:8080", "10.1.0.2:9090", "10.1.0.3:8080"}, w.clusterSet("web"))
		}},
		{"22 UDP: an endpoint that changes only its port is another endpoint", func(t *testing.T) {
			dns := func(number int32) *discoveryv1.EndpointSlice {
				return aSlice("web-1", slicePorts(slicePortObject("dns", "UDP", number)), ep("10.1.0.1"))
			}
			w := newWorld(t, aService("web", ports(udp("dns", 53))), dns(53))
			require.Equal(t, []string{"delete endpoint ns/web:dns/UDP -> 10.1.0.1:53",
				"set endpoint ns/web:dns/UDP -> 10.1.0.1:5353"}, w.change([]metav1.Object{dns(5353)}...))
		}},
		{"23 service first, endpoints later: the REJECT goes in the same wave in which the endpoints come",
			func(t *testing.T) {
				w := newWorld(t, aService("web", internalLocal))
				require.Equal(t, model.Reject, w.routes("web").ClusterIP.Empty)
				require.Equal(t, []string{"set service ns/web", "set endpoint ns/web:http/TCP -> 10.1.0.1:8080"},
					w.change(aSlice("web-1", ep("10.1.0.1", here))))
				require.Equal(t, model.Drop, w.routes("web").ClusterIP.Empty)
			}},
		{"24 an endpoint set that empties and refills at once loses nothing", func(t *testing.T) {
			full, empty := aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2")), aSlice("web-1")
			w := newWorld(t, aService("web"), full)
			w.set(empty)
			require.Empty(t, w.change(full))
			w.delete(full)
			require.Empty(t, w.change(full))
			require.Equal(t, []string{"set endpoint ns/web:http/TCP -> 10.1.0.3:8080"},
				w.change(empty, aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2"), ep("10.1.0.3"))))
			require.Equal(t, v4("10.1.0.1", "10.1.0.2", "10.1.0.3"), w.clusterSet("web"))
		}},
		{"25 after a restart the same objects, in another order, are described by the same calls", func(t *testing.T) {
			objects := []metav1.Object{aService("web"), aSlice("web-1", ep("10.1.0.1")),
				aSlice("web-2", ep("10.1.0.1", draining), ep("10.1.0.2")), inZoneA}
			want := newWorld(t, objects...).got.callTexts()
			require.Len(t, want, 4)
			forEachOrder(objects, func(objects []metav1.Object) {
				require.Equal(t, want, newWorld(t, objects...).got.callTexts())
			})
		}},
		{"26 ExternalName, ClusterIP and NodePort transitions", func(t *testing.T) {
			kinds := map[string]*corev1.Service{
				"ExternalName": aService("web", typed(corev1.ServiceTypeExternalName)),
				"headless":     aService("web", clusterIPs("None")),
				"ClusterIP":    aService("web"),
				"NodePort":     aService("web", nodePort(30080)),
				"gone":         nil,
			}
			for from, before := range kinds {
				for to, after := range kinds {
					w := newWorld(t, aSlice("web-1", ep("10.1.0.1")))
					for _, obj := range []*corev1.Service{before, after} {
						if obj == nil {
							w.delete(aService("web"))
						} else {
							w.set(obj)
						}
						w.flush()
					}
					served := to == "ClusterIP" || to == "NodePort"
					require.Equal(t, served, w.service("web") != nil, "%s to %s", from, to)
					require.Equal(t, served, len(w.endpoints("web")) == 1, "%s to %s", from, to)
					if served {
						require.Equal(t, to == "NodePort", w.mustService("web").Ports[0].NodePort == 30080, "%s to %s",
							from, to)
						require.Equal(t, to == "NodePort", !w.routes("web").External.IsZero(), "%s to %s", from, to)
					}
				}
			}
		}},
	} {
		t.Run(tc.name, tc.test)
	}
}
