package localstate

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// TestRoutes covers S25 to S28 as a backend receives them. Package model says what a backend must do with a route.
func TestRoutes(t *testing.T) {
	const (
		here  = "here"
		there = "there"
		gone  = "nowhere"
	)
	slice := func(where string) *discoveryv1.EndpointSlice {
		switch where {
		case here:
			return aSlice("web-1", ep("10.1.0.1", local))
		case there:
			return aSlice("web-1", ep("10.1.0.2", onNode(other)))
		}
		return aSlice("web-1", ep("10.1.0.2", onNode(other), unready))
	}
	detect := DetectLocal{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for _, tc := range []struct {
		name      string
		opts      Options
		service   []serviceOption
		endpoints string
		want      string
	}{
		{"S28 the cluster IP, without a detector: no masquerading", Options{}, nil, here,
			"cluster IP: Cluster, masquerade Never, if empty Reject"},
		{"S28 with a detector: what is no local pod is masqueraded", Options{DetectLocal: detect}, nil, here,
			"cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject"},
		{"S28 masqueradeAll: all is, with or without a detector", Options{DetectLocal: detect, MasqueradeAll: true},
			nil, here,
			"cluster IP: Cluster, masquerade Always, if empty Reject"},
		{"S28 internal Local does not change masquerading", Options{DetectLocal: detect},
			[]serviceOption{internalLocal}, here,
			"cluster IP: Local, masquerade UnlessLocalPod, if empty Drop"},
		{"S25 internal Local with no endpoint here: drop", Options{}, []serviceOption{internalLocal}, there,
			"cluster IP: Local, masquerade Never, if empty Drop"},
		{"S25 internal Local with no endpoint anywhere: reject", Options{}, []serviceOption{internalLocal}, gone,
			"cluster IP: Local, masquerade Never, if empty Reject"},
		{"S27 external traffic, policy Cluster: always masqueraded", Options{DetectLocal: detect},
			[]serviceOption{nodePort(30080)}, here,
			"cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject; external: Cluster, masquerade Always, " +
				"if empty Reject; " +
				"external from local pod: Cluster, masquerade Always, if empty Reject; external from node: Cluster, " +
				"masquerade Always, if empty Reject"},
		{"S27 policy Local: the source is kept; pods and the node are short-circuited", Options{DetectLocal: detect},
			[]serviceOption{nodePort(30080), externalLocal}, here,
			"cluster IP: Cluster, masquerade UnlessLocalPod, if empty Reject; external: Local, masquerade Never, if " +
				"empty Drop; " +
				"external from local pod: Cluster, masquerade Never, if empty Reject; external from node: Cluster, " +
				"masquerade Always, if empty Reject"},
		{"S27 policy Local without a detector: pods are as others", Options{},
			[]serviceOption{nodePort(30080), externalLocal}, here,
			"cluster IP: Cluster, masquerade Never, if empty Reject; external: Local, masquerade Never, if empty Drop; " +
				"external from local pod: Local, masquerade Never, if empty Drop; external from node: Cluster, " +
				"masquerade Always, if empty Reject"},
		{"S27 S28 masqueradeAll is about cluster IPs only", Options{DetectLocal: detect, MasqueradeAll: true},
			[]serviceOption{nodePort(30080), externalLocal}, here,
			"cluster IP: Cluster, masquerade Always, if empty Reject; external: Local, masquerade Never, if empty " +
				"Drop; " +
				"external from local pod: Cluster, masquerade Never, if empty Reject; external from node: Cluster, " +
				"masquerade Always, if empty Reject"},
		{"S25 policy Local with no endpoint anywhere: reject", Options{},
			[]serviceOption{nodePort(30080), externalLocal}, gone,
			"cluster IP: Cluster, masquerade Never, if empty Reject; external: Local, masquerade Never, if empty " +
				"Reject; " +
				"external from local pod: Local, masquerade Never, if empty Reject; external from node: Cluster, " +
				"masquerade Always, if empty Reject"},
		{"S9 policy Local where it is not honoured", Options{}, []serviceOption{externalLocal}, here,
			"cluster IP: Cluster, masquerade Never, if empty Reject"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.NodeName = me
			w := newWorldWith(t, tc.opts, aService("web", tc.service...), slice(tc.endpoints))
			require.Equal(t, tc.want, w.routes("web").String())
		})
	}
}

// TestHasAny tests S23 through the verdicts: whether there is an endpoint anywhere.
func TestHasAny(t *testing.T) {
	for _, tc := range []struct {
		name     string
		endpoint sliceOption
		want     model.Verdict
	}{
		{"S23 ready elsewhere", ep("10.1.0.2", onNode(other)), model.Drop},
		{"S23 ready elsewhere, for another zone", ep("10.1.0.2", onNode(other), forZones("zone-z")), model.Drop},
		{"S23 serving and terminating elsewhere", ep("10.1.0.2", onNode(other), draining), model.Drop},
		{"S23 ready and terminating elsewhere", ep("10.1.0.2", onNode(other), readyTerminating), model.Drop},
		{"S23 serving and neither ready nor terminating is not usable", ep("10.1.0.2", onNode(other), servingUnready),
			model.Reject},
		{"S23 terminating and not serving is not usable", ep("10.1.0.2", onNode(other), dead), model.Reject},
		{"S23 S25 nothing at all", func(*discoveryv1.EndpointSlice) {}, model.Reject},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, aService("web", nodePort(30080), externalLocal, internalLocal),
				aSlice("web-1", tc.endpoint))
			require.Equal(t, tc.want, w.routes("web").External.Empty)
			require.Equal(t, tc.want, w.routes("web").ClusterIP.Empty)
			require.Equal(t, model.Reject, w.routes("web").ExternalFromNode.Empty)

			w = newWorld(t, aService("web", internalLocal), aSlice("web-1", tc.endpoint))
			require.Equal(t, tc.want, w.routes("web").ClusterIP.Empty, "S23 also where the cluster set is not used")
			require.Empty(t, w.endpoints("web"))
		})
	}

	t.Run("S25 the verdict changes with the endpoints elsewhere", func(t *testing.T) {
		w := newWorld(t, aService("web", internalLocal))
		require.Equal(t, []string{"set service ns/web"}, w.change(aSlice("web-1", ep("10.1.0.2", onNode(other)))))
		require.Equal(t, model.Drop, w.routes("web").ClusterIP.Empty)
		require.Equal(t, []string{"set service ns/web"}, w.change([]metav1.Object{aSlice("web-1")}...))
		require.Equal(t, model.Reject, w.routes("web").ClusterIP.Empty)
	})
	t.Run("S25 each port and family for itself", func(t *testing.T) {
		w := newWorld(t, aService("web", clusterIPs("10.0.0.1", "fd00::1"), internalLocal,
			ports(tcp("http", 80), tcp("admin", 81))),
			aSlice("web-1", ep("10.1.0.2", onNode(other))))
		http, admin := w.mustService("web").Ports[0], w.mustService("web").Ports[1]
		require.Equal(t, model.Drop, http.Routes.IPv4.ClusterIP.Empty)
		require.Equal(t, model.Reject, http.Routes.IPv6.ClusterIP.Empty)
		require.Equal(t, model.Reject, admin.Routes.IPv4.ClusterIP.Empty)
	})
	t.Run("routes of a family without a cluster IP are zero", func(t *testing.T) {
		w := newWorld(t, aService("web", nodePort(30080)))
		require.Zero(t, w.mustService("web").Ports[0].Routes.IPv6)
	})
}

func TestLocalTrafficDetectors(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/16")
	dual := aService("web", clusterIPs("10.0.0.1", "fd00::1"))
	const detected, not = model.MasqueradeUnlessLocalPod, model.MasqueradeNever
	for _, tc := range []struct {
		name           string
		detect         DetectLocal
		node           []nodeOption
		v4, v6         model.Masquerade
		cidrs          []string
		bridge, prefix string
	}{
		{"S30 none", DetectLocal{}, []nodeOption{podCIDRs("10.1.2.0/24")}, not, not, nil, "", ""},
		{"S30 cluster CIDRs of both families", DetectLocal{ClusterCIDRs: []netip.Prefix{v6, v4}}, nil, detected,
			detected, []string{"10.1.0.0/16", "fd01::/16"}, "", ""},
		{"S30 a missing cluster CIDR: no detector for that family", DetectLocal{ClusterCIDRs: []netip.Prefix{v4}}, nil,
			detected, not, []string{"10.1.0.0/16"}, "", ""},
		{"S30 host bits of a cluster CIDR are cleared",
			DetectLocal{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/16"), v4}}, nil, detected, not,
			[]string{"10.1.0.0/16"}, "", ""},
		{"S30 the node's pod CIDRs", DetectLocal{NodeCIDR: true},
			[]nodeOption{podCIDRs("fd01:0:0:1::/64", "10.1.2.0/24")}, detected, detected,
			[]string{"10.1.2.0/24", "fd01:0:0:1::/64"}, "", ""},
		{"S30 a node with one pod CIDR", DetectLocal{NodeCIDR: true}, []nodeOption{podCIDRs("fd01:0:0:1::/64")}, not,
			detected, []string{"fd01:0:0:1::/64"}, "", ""},
		{"S30 a node that has none yet", DetectLocal{NodeCIDR: true}, nil, not, not, nil, "", ""},
		{"S30 a bridge is for both families", DetectLocal{Bridge: "cbr0"}, nil, detected, detected, nil, "cbr0", ""},
		{"S30 an interface prefix too", DetectLocal{InterfacePrefix: "veth"}, nil, detected, detected, nil, "", "veth"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldWith(t, Options{NodeName: me, DetectLocal: tc.detect}, dual)
			w.change(aNode(tc.node...))
			port := w.mustService("web").Ports[0]
			require.Equal(t, tc.v4, port.Routes.IPv4.ClusterIP.Masquerade)
			require.Equal(t, tc.v6, port.Routes.IPv6.ClusterIP.Masquerade)
			require.Equal(t, append([]string{}, tc.cidrs...), texts(w.got.node.LocalPods.CIDRs))
			require.Equal(t, tc.bridge, w.got.node.LocalPods.Bridge)
			require.Equal(t, tc.prefix, w.got.node.LocalPods.InterfacePrefix)
			require.Empty(t, w.got.checkForm())
		})
	}

	t.Run("S48 services follow the node's pod CIDRs", func(t *testing.T) {
		w := newWorldWith(t, Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}}, dual,
			aService("api", clusterIPs("fd00::2")))
		require.Equal(t, []string{"set node", "set service ns/web"}, w.change(aNode(podCIDRs("10.1.2.0/24"))))
		require.Equal(t, detected, w.mustService("web").Ports[0].Routes.IPv4.ClusterIP.Masquerade)
		require.Equal(t, []string{"set node"}, w.change(aNode(podCIDRs("10.1.3.0/24"))),
			"another CIDR: the services stay")
		require.Equal(t, []string{"set node", "set service ns/api", "set service ns/web"},
			w.change(aNode(podCIDRs("fd01::/64"))))
		require.Equal(t, not, w.mustService("web").Ports[0].Routes.IPv4.ClusterIP.Masquerade)
		w.delete(aNode())
		w.flush()
		require.Equal(t, []string{"set node"}, w.got.callTexts(), "the node goes: what is known of it stays")
	})
}
