package localstate

import (
	"encoding/json"
	"hash/crc64"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The first three feed objects that no API server has checked: every field may be missing, empty or nonsense. Whatever
// the input, nothing panics, the calls to the receiver comply with the contract, the rest of the cluster is served, and
// nothing is kept in the end.

func FuzzService(f *testing.F) {
	addObjects(f,
		aService("web", nodePort(30080), externalLocal, internalLocal, externalIPs("192.0.2.5", "2001:db8::5"),
			clusterIPs("10.0.0.1", "fd00::1")),
		aService("web", vips("192.0.2.7", "::ffff:192.0.2.8"), externalLocal, healthCheck(30000),
			sourceRanges(" 203.0.113.0/24", "::/0")),
		aService("web", ports(tcp("http", 80), udp("http", 80), tcp("http", -1), tcp("", 70000)), clusterIPs("None")))
	addTexts(f, `{}`, `{"metadata":null,"spec":null,"status":null}`,
		`{"metadata":{"name":"web","namespace":"ns"},"spec":{"clusterIP":"10.0.0.1","sessionAffinity":"ClientIP",`+
			`"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":-1}},"ports":[{}]}}`,
		`{"metadata":{"name":"web","namespace":"ns"},"spec":{"clusterIP":"10.0.0.1","clusterIPs":["",""],`+
			`"ipFamilies":["IPv6","IPv4","IPv4"],"ports":[{"name":"http","port":80,"nodePort":-5}]}}`,
		`{"metadata":{"name":"web","namespace":"ns"},"spec":{"clusterIP":"fe80::1%eth0"},`+
			`"status":{"loadBalancer":{"ingress":[{},{"ip":"1.2.3"},{"ip":"192.0.2.7","ipMode":""}]}}}`)
	f.Fuzz(func(t *testing.T, input []byte) {
		checkObject(t, input, &corev1.Service{})
	})
}

func FuzzEndpointSlice(f *testing.F) {
	addObjects(f,
		aSlice("web-1", ep("10.1.0.1", local, forZones("zone-a", ""), forNodes(me)), ep("10.1.0.1", draining),
			ep("bogus")),
		aSlice("web-1", ofType(discoveryv1.AddressTypeIPv6),
			slicePorts(slicePortObject("dns", "UDP", 53), slicePortObject("http", "", 70000)),
			ep("fd01::1", onNode(other), servingUnready)),
		aSlice("web-1", annotated(corev1.EndpointsLastChangeTriggerTime, "2999-01-02T03:04:05.6Z"), ep("010.1.0.1")))
	addTexts(f, `{}`, `{"endpoints":null,"ports":null}`,
		`{"metadata":{"name":"web-1","namespace":"ns","labels":{"kubernetes.io/service-name":"web"}},`+
			`"addressType":"IPv4","ports":[{},{"name":"http"},{"port":80},{"name":"http","port":-1,"protocol":"odd"},`+
			`{"name":"http","port":8080}],"endpoints":[{},{"addresses":null},{"addresses":[""]},`+
			`{"addresses":["10.1.0.1"],"conditions":null,"hints":{}},{"addresses":["10.1.0.2"],"hints":{"forZones":[{}],`+
			`"forNodes":null},"nodeName":""}]}`,
		`{"metadata":{"name":"web-1","namespace":"ns","labels":{"kubernetes.io/service-name":"web",`+
			`"service.kubernetes.io/headless":""}},"addressType":"IPv4"}`)
	f.Fuzz(func(t *testing.T, input []byte) {
		checkObject(t, input, &discoveryv1.EndpointSlice{})
	})
}

func FuzzNode(f *testing.F) {
	addObjects(f,
		aNode(inZone("zone-a"), internalIPs("203.0.113.9", "2001:db8::9", "bogus"),
			podCIDRs("10.1.0.0/24", "fd01::/64", "bogus")),
		aNode(func(obj *corev1.Node) { obj.Spec.PodCIDR = "::ffff:10.1.0.0/120" }))
	addTexts(f,
		`{}`,
		`{"metadata":{"name":"me","labels":null},"spec":{"podCIDR":"x","taints":[{}]},"status":{"addresses":[{},`+
			`{"type":"InternalIP","address":"::ffff:203.0.113.9"},{"type":"InternalIP","address":"fe80::1%eth0"}]}}`)
	f.Fuzz(func(t *testing.T, input []byte) {
		checkObject(t, input, &corev1.Node{})
	})
}

func FuzzServiceCIDR(f *testing.F) {
	addObjects(f, aServiceCIDR("kubernetes", "10.0.0.0/16", "fd00::/108", "010.0.0.0/8", "::ffff:10.0.0.0/104",
		"::ffff:0:0/90", "bogus"))
	addTexts(f, `{}`, `{"spec":{"cidrs":[""]}}`)
	f.Fuzz(func(t *testing.T, input []byte) {
		checkObject(t, input, &networkingv1.ServiceCIDR{})
	})
}

func addObjects(f *testing.F, objects ...metav1.Object) {
	for _, obj := range objects {
		text, err := json.Marshal(obj)
		require.NoError(f, err)
		f.Add(text)
	}
}

func addTexts(f *testing.F, list ...string) {
	for _, text := range list {
		f.Add([]byte(text))
	}
}

// checkObject hands over an object among others.
func checkObject(t *testing.T, input []byte, obj metav1.Object) {
	if json.Unmarshal(input, obj) != nil {
		return
	}
	others := []metav1.Object{
		aService("web", nodePort(30080), clusterIPs("10.0.0.1", "fd00::1"), externalLocal),
		aSlice("web-1", ep("10.1.0.1", local)), aSlice("web-2", ep("10.1.0.2", forZones("zone-a"))),
		aService("api", clusterIPs("10.0.0.9"), vips("192.0.2.7"), sourceRanges("203.0.113.0/24")),
		aSlice("api-1", ofService("api"), ep("10.1.0.9")),
	}
	w := newWorldWith(t, Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}})
	w.state.indexAbove = 0
	w.set(others...)
	w.flush()
	w.set(obj)
	require.False(t, w.set(obj), "the same object again changes nothing")
	w.flush()
	if name := obj.GetName(); name != "api" && name != "api-1" {
		require.Contains(t, w.endpoints("api"), "10.1.0.9:8080 Cluster", "the rest of the cluster is served")
	}
	for _, s := range w.got.services {
		require.NotEmpty(t, s.ClusterIPs)
		for _, addr := range append(append(s.ClusterIPs, s.ExternalIPs...), s.LoadBalancerIPs...) {
			require.True(t, addr.IsValid() && !addr.Is4In6() && addr.Zone() == "", "%v of %v", addr, s.Name)
			require.True(t, s.ClusterIP(model.FamilyOf(addr)).IsValid(), "%v of %v", addr, s.Name)
		}
		for _, p := range s.LoadBalancerSourceRanges {
			require.True(t, p.IsValid() && p == p.Masked() && p.Bits() > 0 && !p.Addr().Is4In6(), "%v of %v", p, s.Name)
		}
		require.GreaterOrEqual(t, s.SessionAffinityTimeout, time.Duration(0))
		for _, p := range s.Ports {
			require.NotZero(t, p.Port)
			require.False(t, p.Routes.IPv4.ClusterIP.IsZero() && p.Routes.IPv6.ClusterIP.IsZero())
		}
	}
	for _, e := range w.got.endpoints {
		require.True(t, e.Target.IsValid() && e.Target.Port() != 0 && !e.Target.Addr().Is4In6(), "%v", e)
	}
	require.Empty(t, checkExplanations(w.state, w.got))
	require.Empty(t, w.got.checkImmutable())

	w.delete(append(others, obj)...)
	w.flush()
	require.Empty(t, w.got.endpoints)
	require.Empty(t, w.got.services)
	requireNothingKept(t, w.state)
}

// FuzzEvents reads its input as a program of events, see testkit.Input, and checks that any order and any batching of
// them gives the result that the rules require for the final objects.
func FuzzEvents(f *testing.F) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		program := make([]byte, 400)
		for i := range program {
			program[i] = byte(r.IntN(256))
		}
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		program := testkit.Input(input)
		opts := randomOptions(&program)
		var h history
		for len(program) > 0 && len(h) < 40 {
			h = append(h, randomEvent(&program))
		}
		order := testkit.Seeded(crc64.Checksum(input, crc64.MakeTable(crc64.ISO)))
		checkHistory(t, order, opts, h)
	})
}
