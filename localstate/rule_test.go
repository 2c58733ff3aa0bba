package localstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The services here use both sets: they have a node port and both policies are Local, so that the cluster set is for
// traffic from the node itself.

func TestClusterAndLocalSet(t *testing.T) {
	type want struct{ cluster, local []string }
	none := []string{}
	a, b, c := "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"
	for _, tc := range []struct {
		name      string
		endpoints []sliceOption
		want      want
	}{
		{"S21 ready endpoints are in the cluster set, those of this node in the local set too",
			[]sliceOption{ep("10.1.0.1", local), ep("10.1.0.2", onNode(other)), ep("10.1.0.3")},
			want{[]string{a, b, c}, []string{a}}},
		{"S21 endpoints that are not ready are in none",
			[]sliceOption{ep("10.1.0.1", local), ep("10.1.0.2", local, unready), ep("10.1.0.3", local, servingUnready)},
			want{[]string{a}, []string{a}}},
		{"S21 ... even if there is no other",
			[]sliceOption{ep("10.1.0.1", local, unready), ep("10.1.0.2", local, servingUnready)}, want{none, none}},
		{"S21 endpoints that serve while they terminate are in none while others are ready",
			[]sliceOption{ep("10.1.0.1", local), ep("10.1.0.2", local, draining)}, want{[]string{a}, []string{a}}},
		{"S21 they are in the cluster set if none is ready anywhere",
			[]sliceOption{ep("10.1.0.1", onNode(other), draining), ep("10.1.0.2", onNode(other), unready)},
			want{[]string{a}, none}},
		{"S21 and in both sets on this node",
			[]sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2", onNode(other), draining)},
			want{[]string{a, b}, []string{a}}},
		{"S21 the local set falls back by itself while the cluster set stays ready",
			[]sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2", onNode(other))},
			want{[]string{b}, []string{a}}},
		{"S21 the local set does not fall back while one of this node is ready",
			[]sliceOption{ep("10.1.0.1", local, draining), ep("10.1.0.2", local)}, want{[]string{b}, []string{b}}},
		{"S21 terminating and not serving is no fallback",
			[]sliceOption{ep("10.1.0.1", local, dead), ep("10.1.0.2", onNode(other), draining)},
			want{[]string{b}, none}},
		{"S21 ready and terminating is ready: it is not left for others ...",
			[]sliceOption{ep("10.1.0.1", local, readyTerminating), ep("10.1.0.2", local)},
			want{[]string{a, b}, []string{a, b}}},
		{"S21 ... and others are no fallback beside it",
			[]sliceOption{ep("10.1.0.1", local, readyTerminating), ep("10.1.0.2", local, draining)},
			want{[]string{a}, []string{a}}},
		{"S21 the fallback ignores topology",
			[]sliceOption{ep("10.1.0.1", draining, forZones("zone-a")), ep("10.1.0.2", draining, forZones("zone-b"))},
			want{[]string{a, b}, none}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aNode(inZone("zone-a")), aService("web", nodePort(30080), internalLocal, externalLocal),
				aSlice("web-1", tc.endpoints...))
			require.Equal(t, tc.want, want{w.clusterSet("web"), w.localSet("web")})
		})
	}
}

func TestTopology(t *testing.T) {
	a, b, c := "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"
	all := []string{a, b, c}
	zones := func(z1, z2, z3 []string, options ...endpointOption) []sliceOption {
		return []sliceOption{ep("10.1.0.1", forZones(z1...)), ep("10.1.0.2", forZones(z2...)),
			ep("10.1.0.3", append(options, forZones(z3...))...)}
	}
	of := func(names ...string) []string { return names }
	for _, tc := range []struct {
		name      string
		zone      string
		endpoints []sliceOption
		cluster   []string
		local     []string
	}{
		{"S22 no hints, no filter", "zone-a", zones(nil, nil, nil), all, nil},
		{"S22 the hints for this node's zone select", "zone-a",
			zones(of("zone-a"), of("zone-b"), of("zone-b", "zone-a")), of(a, c), nil},
		{"S22 the hints for this node select", "", []sliceOption{
			ep("10.1.0.1", forNodes(me)), ep("10.1.0.2", forNodes(other)), ep("10.1.0.3", forNodes(other, me))},
			of(a, c), nil},
		{"S22 node hints go before zone hints", "zone-a", []sliceOption{
			ep("10.1.0.1", forNodes(me), forZones("zone-b")), ep("10.1.0.2", forNodes(other), forZones("zone-a")),
			ep("10.1.0.3", forNodes(other), forZones("zone-a"))}, of(a), nil},
		{"S22 zone hints count where no node hint names this node", "zone-a", []sliceOption{
			ep("10.1.0.1", forNodes("x"), forZones("zone-a")), ep("10.1.0.2", forNodes("y"), forZones("zone-b")),
			ep("10.1.0.3", forNodes("z"), forZones("zone-b"))}, of(a), nil},
		{"S22 a missing node hint disables node hints and leaves zone hints alone", "zone-a", []sliceOption{
			ep("10.1.0.1", forNodes(me), forZones("zone-a")), ep("10.1.0.2", forNodes(other), forZones("zone-b")),
			ep("10.1.0.3", forZones("zone-a"))}, of(a, c), nil},
		{"S22 a missing zone hint disables zone hints and leaves node hints alone", "zone-a", []sliceOption{
			ep("10.1.0.1", forNodes(me), forZones("zone-a")), ep("10.1.0.2", forNodes(other), forZones("zone-b")),
			ep("10.1.0.3", forNodes(other))}, of(a), nil},
		{"S22 one missing zone hint disables the filter", "zone-a", zones(of("zone-a"), of("zone-b"), nil), all, nil},
		{"S22 hints of an endpoint that is not ready do not count, nor does their lack", "zone-a",
			zones(of("zone-a"), of("zone-b"), nil, servingUnready), of(a), nil},
		{"S22 the hints of a terminating endpoint do not count either", "zone-a",
			zones(of("zone-b"), of("zone-b"), of("zone-a"), draining), of(a, b), nil},
		{"S22 those of one that is ready and terminating do", "zone-a",
			zones(of("zone-b"), of("zone-b"), of("zone-a"), readyTerminating), of(c), nil},
		{"S22 no filter if no hint names this zone", "zone-c", zones(of("zone-a"), of("zone-b"), of("zone-b")), all,
			nil},
		{"S22 no filter if the only one for this zone is not ready", "zone-b",
			zones(of("zone-a"), of("zone-a"), of("zone-b"), unready), of(a, b), nil},
		{"S22 no zone filter without a zone", "", zones(of("zone-a"), of("zone-a"), of("zone-a")), all, nil},
		{"S22 an empty hint is none, it matches no node without a zone", "", zones(of(""), of("zone-a"), of("zone-a")),
			all, nil},
		{"S22 an empty hint is none, it is as good as missing", "zone-a", zones(of("zone-a"), of("zone-a"), of("", "")),
			all, nil},
		{"S22 an empty hint beside a good one does no harm", "zone-a",
			zones(of("zone-b"), of("zone-b"), of("", "zone-a")), of(c), nil},
		{"S22 a hint is a whole name", "zone", zones(of("zone-a"), of("zone-a", "zone-b"), of("zone-b")), all, nil},
		{"S22 the local set ignores topology", "zone-a", zones(of("zone-a"), of("zone-b"), of("zone-b"), local), of(a),
			of(c)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web", nodePort(30080), internalLocal, externalLocal),
				aSlice("web-1", tc.endpoints...), aNode(inZone(tc.zone)))
			require.Equal(t, tc.cluster, w.clusterSet("web"))
			require.ElementsMatch(t, tc.local, w.localSet("web"))
		})
	}

	t.Run("S22 hints are looked at over all slices of a port", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web"), aSlice("web-1", ep("10.1.0.1", forZones("zone-a"))),
			aSlice("web-2", ep("10.1.0.2", forZones("zone-b"))))
		require.Equal(t, of(a), w.clusterSet("web"))
		w.change(aSlice("web-2", ep("10.1.0.2")))
		require.Equal(t, of(a, b), w.clusterSet("web"))
	})
	t.Run("S22 each port for itself", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web", ports(tcp("http", 80), tcp("admin", 81))),
			aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("admin", "TCP", 8081)),
				ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b"))),
			aSlice("web-2", slicePorts(slicePortObject("admin", "TCP", 8081)), ep("10.1.0.3")))
		require.Equal(t, of("10.1.0.1:8081", "10.1.0.2:8081", "10.1.0.3:8081", a), w.clusterSet("web"))
	})
	t.Run("S22 each family for itself", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web", clusterIPs("10.0.0.1", "fd00::1")),
			aSlice("web-4", ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b"))),
			aSlice("web-6", ofType(discoveryv1.AddressTypeIPv6), ep("fd01::1")))
		require.Equal(t, of(a, "[fd01::1]:8080"), w.clusterSet("web"))
	})
	t.Run("S22 a duplicate that loses is not asked", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")), aService("web"),
			aSlice("web-1", ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b"))),
			aSlice("web-2", ep("10.1.0.2")))
		require.Equal(t, of(a), w.clusterSet("web"))
	})
	t.Run("S22 no node hint names a node without a name", func(t *testing.T) {
		w := newWorldWith(t, Options{}, aService("web"),
			aSlice("web-1", ep("10.1.0.1", forNodes("")), ep("10.1.0.2", forNodes(other))))
		require.Equal(t, of(a, b), w.clusterSet("web"))
	})
}

func TestSetsInUse(t *testing.T) {
	endpoints := aSlice("web-1", ep("10.1.0.1", local), ep("10.1.0.2", onNode(other)))
	both := []string{"10.1.0.1:8080 Cluster,Local", "10.1.0.2:8080 Cluster"}
	clusterOnly := []string{"10.1.0.1:8080 Cluster", "10.1.0.2:8080 Cluster"}
	localOnly := []string{"10.1.0.1:8080 Local"}
	for _, tc := range []struct {
		name    string
		opts    any
		options []serviceOption
		want    []string
	}{
		{"S10 both policies Cluster: the cluster set only", Options{}, []serviceOption{nodePort(30080)}, clusterOnly},
		{"S10 internal Local, not accessible from outside: the local set only", Options{},
			[]serviceOption{internalLocal}, localOnly},
		{"S10 internal Local with a node port: both, for external traffic", Options{},
			[]serviceOption{internalLocal, nodePort(30080)}, both},
		{"S10 internal Local with an external IP: both", Options{},
			[]serviceOption{internalLocal, externalIPs("192.0.2.5")}, both},
		{"S10 ... even if external IPs are switched off: they still count", ClusterOptions{NoExternalIPs: true},
			[]serviceOption{internalLocal, externalIPs("192.0.2.5")}, both},
		{"S10 ... but not one that is invalid", Options{}, []serviceOption{internalLocal, externalIPs("nonsense")},
			localOnly},
		{"S10 ... nor one of the other family", Options{}, []serviceOption{internalLocal, externalIPs("2001:db8::5")},
			localOnly},
		{"S10 internal Local with a VIP: both", Options{}, []serviceOption{internalLocal, vips("192.0.2.7")}, both},
		{"S10 internal Local, LoadBalancer without address or node port: local only", Options{},
			[]serviceOption{internalLocal, vips()}, localOnly},
		{"S10 external Local with a node port: both", Options{}, []serviceOption{externalLocal, nodePort(30080)}, both},
		{"S9 S10 external Local, not accessible from outside: the cluster set only", Options{},
			[]serviceOption{externalLocal, vips()}, clusterOnly},
		{"S9 S10 external Local of a service that is of no such type: the cluster set only", Options{},
			[]serviceOption{externalLocal}, clusterOnly},
		{"S9 S10 external Local by an external IP of the other family: not accessible in this one", Options{},
			[]serviceOption{externalLocal, externalIPs("2001:db8::5")}, clusterOnly},
		{"S10 both Local with a node port: both", Options{},
			[]serviceOption{internalLocal, externalLocal, nodePort(30080)}, both},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := allOptions(tc.opts)
			opts.NodeName = me
			w := newWorldWith(t, opts, aService("web", tc.options...), endpoints)
			require.Equal(t, tc.want, w.endpoints("web"))
		})
	}

	t.Run("S6 S10 external IPs that are switched off are added and removed", func(t *testing.T) {
		w := newWorldWith(t, options{Options{NodeName: me}, ClusterOptions{NoExternalIPs: true}},
			aService("web", internalLocal), endpoints)
		for _, ip := range []string{"192.0.2.5", "2001:db8::5"} {
			sets := localOnly
			if ip == "192.0.2.5" {
				sets = both
			}
			w.change(aService("web", internalLocal, clusterIPs("10.0.0.1", "fd00::1"), externalIPs(ip)))
			require.Equal(t, sets, w.endpoints("web"))
			require.Equal(t, sets[0] == both[0], !w.mustService("web").Ports[0].Routes.IPv4.External.IsZero())
			require.Equal(t, sets[0] != both[0], !w.mustService("web").Ports[0].Routes.IPv6.External.IsZero())
			require.Empty(t, w.mustService("web").ExternalIPs)
			w.change(aService("web", internalLocal, clusterIPs("10.0.0.1", "fd00::1")))
			require.Equal(t, localOnly, w.endpoints("web"))
			require.True(t, w.mustService("web").Ports[0].Routes.IPv6.External.IsZero())
		}
	})
	t.Run("S10 by port: a node port is of its port alone", func(t *testing.T) {
		w := newWorld(t, aService("web", ports(tcp("http", 80), tcp("admin", 81)), nodePort(30080), internalLocal),
			aSlice("web-1", slicePorts(slicePortObject("http", "TCP", 8080), slicePortObject("admin", "TCP", 8081)),
				ep("10.1.0.1", local), ep("10.1.0.2", onNode(other))))
		require.Equal(t, []string{"admin/TCP 10.1.0.1:8081 Local", "http/TCP 10.1.0.1:8080 Cluster,Local",
			"http/TCP 10.1.0.2:8080 Cluster"}, w.endpoints("web"))
	})
	t.Run("S10 by family: an external IP is of its family alone, a node port of both", func(t *testing.T) {
		v6 := aSlice("web-6", ofType(discoveryv1.AddressTypeIPv6), ep("fd01::1", local), ep("fd01::2", onNode(other)))
		w := newWorld(t, aService("web", clusterIPs("10.0.0.1", "fd00::1"), internalLocal, externalIPs("2001:db8::5")),
			endpoints, v6)
		require.Equal(t, []string{"10.1.0.1:8080 Local", "[fd01::1]:8080 Cluster,Local", "[fd01::2]:8080 Cluster"},
			w.endpoints("web"))
		w.change(aService("web", clusterIPs("10.0.0.1", "fd00::1"), internalLocal, nodePort(30080)))
		require.Equal(t, append(both, "[fd01::1]:8080 Cluster,Local", "[fd01::2]:8080 Cluster"), w.endpoints("web"))
	})
}

// TestServingEndpointsOfUDPPorts: whatever the sets, the receiver knows which UDP endpoints serve, so that it does not
// treat their flows as stale.
func TestServingEndpointsOfUDPPorts(t *testing.T) {
	web := aService("web", ports(udp("dns", 53), tcp("dns-tcp", 53)), internalLocal)
	slice := func(options ...sliceOption) *discoveryv1.EndpointSlice {
		options = append(options, slicePorts(slicePortObject("dns", "UDP", 53), slicePortObject("dns-tcp", "TCP", 53)))
		return aSlice("web-1", options...)
	}
	const key = " ns/web:dns/UDP -> 10.1.0.2:53"
	w := newWorld(t, web, slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other)),
		ep("10.1.0.3", onNode(other), dead), ep("10.1.0.4", onNode(other), unready)))
	require.Equal(t, []string{"dns/UDP 10.1.0.1:53 Local", "dns/UDP 10.1.0.2:53 -", "dns-tcp/TCP 10.1.0.1:53 Local"},
		w.endpoints("web"), "S40 one that serves elsewhere is known, one that does not is not")

	for _, step := range []struct {
		name  string
		slice *discoveryv1.EndpointSlice
		calls []string
		want  []string
	}{
		{"it terminates and still serves: it is another value",
			slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), draining)), []string{"set endpoint" + key},
			[]string{"dns/UDP 10.1.0.1:53 Local", "dns/UDP 10.1.0.2:53 -"}},
		{"a condition is spelled out that was the default: no change",
			slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), draining,
				func(e *endpointObject) { e.Conditions.Serving = nil })), []string{},
			[]string{"dns/UDP 10.1.0.1:53 Local", "dns/UDP 10.1.0.2:53 -"}},
		{"it does not serve any more: it goes", slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), dead)),
			[]string{"delete endpoint" + key}, []string{"dns/UDP 10.1.0.1:53 Local"}},
		{"it changes and still does not serve: no change",
			slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), unready)), []string{},
			[]string{"dns/UDP 10.1.0.1:53 Local"}},
		{"it serves without being ready: it is known again",
			slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), servingUnready)), []string{"set endpoint" + key},
			[]string{"dns/UDP 10.1.0.1:53 Local", "dns/UDP 10.1.0.2:53 -"}},
		{"a duplicate is added that loses: no change", slice(ep("10.1.0.1", local),
			ep("10.1.0.2", onNode(other), servingUnready), ep("10.1.0.2", onNode(other), dead)), []string{},
			[]string{"dns/UDP 10.1.0.1:53 Local", "dns/UDP 10.1.0.2:53 -"}},
		{"a duplicate wins that does not serve: it goes",
			slice(ep("10.1.0.1", local), ep("10.1.0.2", onNode(other), servingUnready),
				ep("10.1.0.2", onNode(other), unready)), []string{"delete endpoint" + key},
			[]string{"dns/UDP 10.1.0.1:53 Local"}},
	} {
		require.Equal(t, step.calls, w.change([]metav1.Object{step.slice}...), step.name)
		require.Equal(t, append(step.want, "dns-tcp/TCP 10.1.0.1:53 Local"), w.endpoints("web"), step.name)
	}
}

func TestTheZoneOfTheNode(t *testing.T) {
	web := []metav1.Object{aService("web"), aSlice("web-1", ep("10.1.0.1", forZones("zone-a")),
		ep("10.1.0.2", forZones("zone-b")))}
	plain := []metav1.Object{aService("plain", clusterIPs("10.0.0.2")),
		aSlice("plain-1", ofService("plain"), ep("10.1.0.9"))}
	w := newWorld(t, append(web, plain...)...)
	require.Len(t, w.clusterSet("web"), 2, "no zone, no filter")

	w.change(aNode(inZone("zone-a")))
	require.Equal(t, []string{"10.1.0.1:8080"}, w.clusterSet("web"), "S24 the zone comes")
	require.Equal(t, []string{"set node", "delete endpoint ns/web:http/TCP -> 10.1.0.1:8080",
		"set endpoint ns/web:http/TCP -> 10.1.0.2:8080"}, w.change(aNode(inZone("zone-b"))), "S24 it changes")
	w.delete(aNode())
	w.flush()
	require.Equal(t, []string{"set node"}, w.got.callTexts(), "S24 the node goes: its zone stays")
	require.Equal(t, "zone-b", w.got.node.Zone)
	w.change(aNode())
	require.Len(t, w.clusterSet("web"), 2, "S24 the label goes")

	w.change(aSlice("web-1", ep("10.1.0.1", forZones("zone-a")), ep("10.1.0.2", forZones("zone-b")),
		ep("10.1.0.3", unready)))
	w.change(aNode(inZone("zone-a")))
	require.Equal(t, []string{"10.1.0.1:8080"}, w.clusterSet("web"),
		"S24 one endpoint with hints is enough to depend on the zone")
	w.change(aSlice("web-1", ep("10.1.0.1"), ep("10.1.0.2")))
	require.Equal(t, []string{"set node"}, w.change(aNode(inZone("zone-b"))),
		"the hints have gone, and with them the dependence on the zone")
	w.set(aSlice("web-2", ep("10.1.0.3", forZones("zone-a"))))
	w.delete(web[1])
	w.flush()
	w.set(aSlice("web-3", ep("10.1.0.4", forZones("zone-b"))))
	w.flush()
	require.Equal(t, []string{"10.1.0.4:8080"}, w.clusterSet("web"))
	w.delete(aSlice("web-3"))
	w.flush()
	w.set(aNode(inZone("zone-a")))
	require.Equal(t, 1, w.state.Pending().Endpoints,
		"one slice with hints is left, so the service still depends on the zone")
	w.delete(aSlice("web-2"))
	w.flush()
	w.set(aNode(inZone("zone-b")))
	require.Zero(t, w.state.Pending().Endpoints)
}
