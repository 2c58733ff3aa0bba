package library_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// TestEachProxyReceivesOnlyItsOwnServices runs proxies of all kinds beside each other on one cluster (S1).
func TestEachProxyReceivesOnlyItsOwnServices(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{})
	w := newWriter(t, c)
	mine, theirs := map[string]string{proxyNameLabel: "mine"}, map[string]string{proxyNameLabel: "theirs"}
	// Objects named "foreign" are for none of the proxies here.
	foreign := func(suffix string) {
		w.serve("foreign-proxy"+suffix, theirs, "10.9.0.1")
		w.create(
			kube.Node("foreign-node"+suffix).InternalIP("172.30.0.9").Build(),
			kube.Service("foreign-headless"+suffix).ClusterIP("None").Port("http", 80).Build(),
			kube.EndpointSlice("foreign-headless"+suffix).Name("foreign-headless"+suffix).Label(
				corev1.IsHeadlessService, "").
				Port("http", 8080).Endpoint("10.9.0.2").Build(),
		)
	}
	foreign("-before")
	w.serve("plain-1", nil, "10.1.0.1")
	w.serve("mine-1", mine, "10.2.0.1")
	w.serve("moving", nil, "10.3.0.1")

	var plain, own []*proxy
	var wires []*wire // of the clientsets
	for _, kind := range []struct {
		name string
		make newSource
	}{{"clientset", clientset}, {"informers", sharedInformers}} {
		for _, serviceProxyName := range []string{"", "mine"} {
			client, recorded := recordedClient(t, c.Config)
			p := startProxy(t, kind.name+" of "+serviceProxyName, kind.make(t, client, serviceProxyName),
				serviceProxyName)
			if kind.name == "clientset" {
				wires = append(wires, recorded)
			}
			if serviceProxyName == "" {
				plain = append(plain, p)
			} else {
				own = append(own, p)
			}
		}
	}
	all := slices.Concat(plain, own)
	expect := func(what string, plainState, ownState []string) {
		t.Helper()
		for _, p := range plain {
			p.awaitState(what, slices.Clone(plainState)...)
		}
		for _, p := range own {
			p.awaitState(what, slices.Clone(ownState)...)
		}
	}
	expect("what was there before",
		[]string{"plain-1", "plain-1 -> 10.1.0.1:8080", "moving", "moving -> 10.3.0.1:8080"},
		[]string{"mine-1", "mine-1 -> 10.2.0.1:8080"})
	for _, p := range all {
		assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")},
			p.Node().ServiceCIDRs, p.name)
		assert.Equal(t, []netip.Addr{netip.MustParseAddr("172.30.0.1")}, p.Node().IPs, "%s: the own node's", p.name)
	}

	foreign("-later")
	w.serve("plain-2", nil, "10.1.0.2")
	w.serve("mine-2", mine, "10.2.0.2")
	expect("what comes later",
		[]string{"plain-1", "plain-1 -> 10.1.0.1:8080", "moving", "moving -> 10.3.0.1:8080", "plain-2",
			"plain-2 -> 10.1.0.2:8080"},
		[]string{"mine-1", "mine-1 -> 10.2.0.1:8080", "mine-2", "mine-2 -> 10.2.0.2:8080"})

	w.change("moving", func(s *corev1.Service) { s.Labels = mine })
	expect("a service that goes to another proxy, before its slice gets the label",
		[]string{"plain-1", "plain-1 -> 10.1.0.1:8080", "plain-2", "plain-2 -> 10.1.0.2:8080"},
		[]string{"mine-1", "mine-1 -> 10.2.0.1:8080", "mine-2", "mine-2 -> 10.2.0.2:8080", "moving",
			"moving -> 10.3.0.1:8080"})

	// The API server lets a service become headless only through this type.
	for _, name := range []string{"plain-2", "mine-2"} {
		w.change(name, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		})
		w.change(name, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
			s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		})
	}
	w.remove("plain-1")
	expect("services that become headless or are deleted", nil,
		[]string{"mine-1", "mine-1 -> 10.2.0.1:8080", "moving", "moving -> 10.3.0.1:8080"})

	w.create(kube.ServiceCIDR("more", "10.200.0.0/24"))
	more := netip.MustParsePrefix("10.200.0.0/24")
	for _, p := range all {
		p.await("a new ServiceCIDR", func() bool { return slices.Contains(p.Node().ServiceCIDRs, more) })
	}
	require.NoError(t, c.Client.NetworkingV1().ServiceCIDRs().Delete(t.Context(), "more", metav1.DeleteOptions{}))
	w.moveNode("zone-a")
	for _, p := range all {
		p.await("no ServiceCIDR any more, and a zone", func() bool {
			return !slices.Contains(p.Node().ServiceCIDRs, more) && p.Node().Zone == "zone-a"
		})
	}

	for i, wanted := range []string{"!" + proxyNameLabel, proxyNameLabel + "=mine"} {
		assert.Equal(t, []string{wanted + " spec.clusterIP!=None"}, wires[i].selectors("services"))
		assert.Equal(t, []string{"!service.kubernetes.io/headless "}, wires[i].selectors("endpointslices"))
		assert.Equal(t, []string{" metadata.name=n1"}, wires[i].selectors("nodes"))
		for _, foreign := range []string{"foreign-headless", "foreign-node"} {
			assert.False(t, wires[i].holds(foreign), "the API server filters")
		}
		assert.True(t, wires[i].holds("moving"), "names can be seen")
	}
}
