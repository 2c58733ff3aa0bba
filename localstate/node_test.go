package localstate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestNode(t *testing.T) {
	address := func(kind corev1.NodeAddressType, ip string) nodeOption {
		return func(obj *corev1.Node) {
			obj.Status.Addresses = append(obj.Status.Addresses, corev1.NodeAddress{Type: kind, Address: ip})
		}
	}
	taint := func(key string) nodeOption {
		return func(obj *corev1.Node) { obj.Spec.Taints = append(obj.Spec.Taints, corev1.Taint{Key: key}) }
	}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		want string
	}{
		{"a node that says nothing", aNode(), "node me"},
		{"S22 its zone", aNode(inZone("zone-a")), "node me zone=zone-a"},
		{"S26 its internal addresses come before its external ones, in their order",
			aNode(address(corev1.NodeExternalIP, "198.51.100.1"), internalIPs("192.0.2.2", "2001:db8::1", "192.0.2.1")),
			"node me ips=192.0.2.2,2001:db8::1,192.0.2.1,198.51.100.1"},
		{"its host name is no address", aNode(address(corev1.NodeHostName, "192.0.2.9"), internalIPs("192.0.2.1")),
			"node me ips=192.0.2.1"},
		{"an address that is there twice counts once",
			aNode(internalIPs("192.0.2.1"), address(corev1.NodeExternalIP, "192.0.2.1")), "node me ips=192.0.2.1"},
		{"S5 an invalid address is skipped", aNode(internalIPs("", "192.0.2.256", "192.0.2.01")),
			"node me ips=192.0.2.1"},
		{"its pod CIDRs, in their order", aNode(podCIDRs("fd01::/64", "10.1.0.0/24")),
			"node me pods=fd01::/64,10.1.0.0/24"},
		{"a pod CIDR that is there twice counts once", aNode(podCIDRs("10.1.0.0/24", "10.1.0.7/24")),
			"node me pods=10.1.0.0/24"},
		{"podCIDR where there are no podCIDRs", aNode(func(obj *corev1.Node) { obj.Spec.PodCIDR = "10.1.0.0/24" }),
			"node me pods=10.1.0.0/24"},
		{"podCIDR does not matter where there are podCIDRs",
			aNode(podCIDRs("10.2.0.0/24"), func(obj *corev1.Node) { obj.Spec.PodCIDR = "10.1.0.0/24" }),
			"node me pods=10.2.0.0/24"},
		{"S5 an invalid pod CIDR is skipped", aNode(podCIDRs("10.1.0.0", "10.2.0.0/24")), "node me pods=10.2.0.0/24"},
		{"S39a the autoscaler is about to remove it", aNode(taint("any"), taint("ToBeDeletedByClusterAutoscaler")),
			"node me not-eligible"},
		{"S39a in whatever order the taints are", aNode(taint("ToBeDeletedByClusterAutoscaler"), taint("any")),
			"node me not-eligible"},
		{"S39a other taints do not matter", aNode(taint("node.kubernetes.io/unschedulable")), "node me"},
		{"S39a it is being deleted", aNode(func(obj *corev1.Node) {
			now := metav1.Now()
			obj.DeletionTimestamp = &now
		}), "node me not-eligible"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.node)
			require.Equal(t, tc.want, w.got.node.String())
			require.Empty(t, w.got.checkForm())
		})
	}

	t.Run("S48 node IPs that are given take the place of the Node object's of their family, with and without it",
		func(t *testing.T) {
			given := []netip.Addr{netip.MustParseAddr("192.0.2.7")}
			state, err := New(t.Context(), Options{NodeName: me, NodeIPs: given}, ClusterOptions{})
			require.NoError(t, err)
			var got nodes
			state.Flush(&got)
			state.setNode(aNode(inZone("zone-a"), internalIPs("192.0.2.1")))
			state.Flush(&got)
			state.setNode(aNode(inZone("zone-a"), internalIPs("2001:db8::1", "192.0.2.1", "2001:db8::2")))
			state.Flush(&got)
			state.setNode(aNode(inZone("zone-a"), internalIPs("192.0.2.2", "2001:db8::3")))
			state.Flush(&got)
			require.Equal(t, []string{
				"node me ips=192.0.2.7",
				"node me zone=zone-a ips=192.0.2.7",
				"node me zone=zone-a ips=192.0.2.7,2001:db8::1,2001:db8::2",
				"node me zone=zone-a ips=192.0.2.7,2001:db8::3",
			}, got.list)
		})

	t.Run("S48 podCIDRs by which local traffic is detected are kept until there are others", func(t *testing.T) {
		w := newWorldWith(t, Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}})
		local := func() []string {
			w.flush()
			return texts(w.got.node.LocalPods.CIDRs)
		}
		require.True(t, w.state.AwaitsNodeCIDR())
		w.set(aNode(podCIDRs("nonsense")))
		require.True(t, w.state.AwaitsNodeCIDR())
		w.set(aNode(podCIDRs("10.1.0.0/24", "fd01::/64")))
		require.Equal(t, []string{"10.1.0.0/24", "fd01::/64"}, local())
		w.set(aNode())
		require.Equal(t, []string{"10.1.0.0/24", "fd01::/64"}, local(), "a node that registers anew has none at first")
		require.Empty(t, w.got.node.PodCIDRs, "the node is as its object says, all the same")
		w.delete(aNode())
		w.set(aNode(podCIDRs("nonsense")))
		require.Equal(t, []string{"10.1.0.0/24", "fd01::/64"}, local())
		require.False(t, w.state.AwaitsNodeCIDR())
		w.set(aNode(podCIDRs("10.2.0.0/24")))
		require.Equal(t, []string{"10.2.0.0/24"}, local(), "others replace all of them")
		other := newWorldWith(t, Options{NodeName: me})
		require.False(t, other.state.AwaitsNodeCIDR())
	})

	t.Run("S39a a node that is gone is not eligible until it comes back", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a"), internalIPs("192.0.2.1")))
		w.delete(aNode())
		w.flush()
		require.Equal(t, "node me zone=zone-a ips=192.0.2.1 not-eligible", w.got.node.String())
		w.change(aServiceCIDR("kubernetes", "10.0.0.0/16"))
		require.Equal(t, "node me zone=zone-a ips=192.0.2.1 services=10.0.0.0/16 not-eligible", w.got.node.String())
		w.change(aNode(inZone("zone-a"), internalIPs("192.0.2.1")))
		require.Equal(t, "node me zone=zone-a ips=192.0.2.1 services=10.0.0.0/16", w.got.node.String())
	})
	t.Run("S1 other nodes are ignored", func(t *testing.T) {
		w := newWorld(t, aNode(inZone("zone-a")))
		obj := aNode(inZone("zone-b"))
		obj.Name = other
		require.Empty(t, w.change(obj))
		w.delete(obj)
		w.flush()
		require.Equal(t, "node me zone=zone-a", w.got.node.String())
	})
	t.Run("without a name every node is another one", func(t *testing.T) {
		w := newWorldWith(t, Options{})
		obj := aNode(inZone("zone-b"))
		obj.Name = ""
		require.False(t, w.set(obj))
		require.False(t, w.delete(obj))
		w.flush()
		require.Equal(t, &model.Node{}, w.got.node)
	})
}

// nodes is a receiver that stores only nodes.
type nodes struct {
	null
	list []string
}

func (n *nodes) SetNode(node *model.Node) { n.list = append(n.list, node.String()) }

func TestServiceCIDRs(t *testing.T) {
	w := newWorld(t, aServiceCIDR("kubernetes", "fd00::/108", "10.0.0.0/16"))
	cidrs := func() []string { return texts(w.got.node.ServiceCIDRs) }
	require.Equal(t, []string{"10.0.0.0/16", "fd00::/108"}, cidrs(), "S47 of both families, sorted")
	require.Equal(t, []string{"set node"}, w.change(aServiceCIDR("more", "10.9.0.0/16", "10.0.0.0/16")))
	require.Equal(t, []string{"10.0.0.0/16", "10.9.0.0/16", "fd00::/108"}, cidrs(),
		"S47 one that two objects share is there once")
	w.delete(aServiceCIDR("kubernetes"))
	w.flush()
	require.Equal(t, []string{"10.0.0.0/16", "10.9.0.0/16"}, cidrs(), "S47 and survives one's deletion")
	require.Empty(t, w.change(aServiceCIDR("again", "10.9.0.0/16")), "no change")
	w.change(aServiceCIDR("more", "010.0.0.5/16", "nonsense"))
	require.Equal(t, []string{"10.0.0.0/16", "10.9.0.0/16"}, cidrs(), "S5 leniently, and the invalid one is skipped")
	w.change(aServiceCIDR("again"))
	require.Equal(t, []string{"10.0.0.0/16"}, cidrs(), "S47 an object may lose a range")
	require.Equal(t, []string{"set node"}, w.change(aNode(inZone("a"))))
	require.Equal(t, []string{"10.0.0.0/16"}, cidrs(), "the Node object knows nothing of them")
	w.change(aServiceCIDR("more", "::ffff:10.7.0.0/112", "::ffff:10.7.0.0/90"))
	require.Equal(t, []string{"10.7.0.0/16", "::ffc0:0:0/90"}, cidrs(),
		"S5 an IPv4-mapped range is IPv4, unless it is wider than that")
	w.delete(aServiceCIDR("more"), aServiceCIDR("again"))
	w.flush()
	require.Empty(t, cidrs())
	require.Empty(t, w.got.checkForm())
}

// kube-proxy exits if no podCIDR is of the primary family (S30).
func TestAFamilyWithoutPodCIDRIsLogged(t *testing.T) {
	var log strings.Builder
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
	lines := func(opts Options, cidrs ...string) []string {
		t.Helper()
		state, err := New(klog.NewContext(t.Context(), logger), opts, ClusterOptions{})
		require.NoError(t, err)
		log.Reset()
		for _, zone := range []string{"a", "b"} { // an unrelated change does not log it again
			state.setNode(aNode(podCIDRs(cidrs...), inZone(zone)))
		}
		return slices.Collect(strings.Lines(log.String()))
	}
	byNodeCIDR := Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true}}
	only6 := lines(byNodeCIDR, "fd00::/64")
	require.Len(t, only6, 1)
	require.Contains(t, only6[0], `The Node has no podCIDR of this family`)
	require.Contains(t, only6[0], `family="IPv4"`)
	require.Empty(t, lines(byNodeCIDR, "fd00::/64", "10.1.0.0/24"))
	require.Empty(t, lines(byNodeCIDR), "they are waited for")
	byNodeCIDR.Families = []model.Family{model.IPv6}
	require.Empty(t, lines(byNodeCIDR, "fd00::/64"))
	require.Empty(t, lines(Options{NodeName: me}, "fd00::/64"), "it does not matter")
}
