package watch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resources are the resources of the kinds.
var resources = map[kind]schema.GroupVersionResource{
	services:       {Version: "v1", Resource: "services"},
	endpointSlices: {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	nodes:          {Version: "v1", Resource: "nodes"},
	serviceCIDRs:   {Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
}

func TestFilterAppliesS1(t *testing.T) {
	clusterIP := func(ip string) *corev1.Service {
		s := service("a")
		s.Spec.ClusterIP = ip
		return s
	}
	for _, test := range []struct {
		name      string
		proxyName string
		headless  bool
		nodeName  string
		obj       metav1.Object
		want      bool
	}{
		{name: "a service", obj: service("a"), want: true},
		{name: "a headless service", obj: clusterIP("None")},
		{name: "a service without a cluster IP, which is S2's to skip", obj: clusterIP(""), want: true},
		{name: "a service of another proxy", obj: labelled(service("a"), labelServiceProxyName, "other")},
		{name: "a service of a proxy with an empty name", obj: labelled(service("a"), labelServiceProxyName, "")},
		{name: "a service with the headless label, which is for slices",
			obj: labelled(service("a"), corev1.IsHeadlessService, ""), want: true},
		{name: "a service of this named proxy", proxyName: "mine", obj: labelled(service("a"), labelServiceProxyName,
			"mine"), want: true},
		{name: "a service without the label, for a named proxy", proxyName: "mine", obj: service("a")},
		{name: "a service of another proxy, for a named proxy",
			proxyName: "mine", obj: labelled(service("a"), labelServiceProxyName, "other")},
		{name: "a slice", obj: slice("a"), want: true},
		{name: "a slice of a headless service", obj: labelled(slice("a"), corev1.IsHeadlessService, "")},
		{name: "a headless service that is asked for", headless: true, obj: clusterIP("None"), want: true},
		{name: "a headless service of another proxy", headless: true,
			obj: labelled(clusterIP("None"), labelServiceProxyName, "other")},
		{name: "a slice of a headless service that is asked for", headless: true,
			obj: labelled(slice("a"), corev1.IsHeadlessService, ""), want: true},
		{name: "a slice of another proxy", obj: labelled(slice("a"), labelServiceProxyName, "other"), want: true},
		{name: "a slice without the label, for a named proxy", proxyName: "mine", obj: slice("a"), want: true},
		{name: "a slice of this named proxy", proxyName: "mine", obj: labelled(slice("a"), labelServiceProxyName,
			"mine"), want: true},
		{name: "a headless slice of this named proxy", proxyName: "mine",
			obj: labelled(labelled(slice("a"), labelServiceProxyName, "mine"), corev1.IsHeadlessService, "")},
		{name: "the own node", nodeName: "n1", obj: node("n1"), want: true},
		{name: "any node, when all are wanted", nodeName: AllNodes, obj: node("other"), want: true},
		{name: "another node", nodeName: "n1", obj: node("n2")},
		{name: "a node when none is wanted", obj: node("n1")},
		{name: "a node without a name when none is wanted", obj: node("")},
		{name: "a ServiceCIDR", obj: serviceCIDR("a"), want: true},
		{name: "a pod", obj: &corev1.Pod{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, filter{nodeName: test.nodeName, serviceProxyName: test.proxyName,
				headless: test.headless}.wants(test.obj))
		})
	}
}
