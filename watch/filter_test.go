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

func TestOnlyOtherNodesAreLeftOut(t *testing.T) {
	for _, test := range []struct {
		name     string
		nodeName string
		obj      metav1.Object
		want     bool
	}{
		{name: "a service", obj: service("a"), want: true},
		{name: "a service of another proxy, which localstate ignores",
			obj: labelled(service("a"), labelServiceProxyName, "other"), want: true},
		{name: "a slice of a headless service, which localstate ignores",
			obj: labelled(slice("a"), corev1.IsHeadlessService, ""), want: true},
		{name: "the own node", nodeName: "n1", obj: node("n1"), want: true},
		{name: "any node, when all are wanted", nodeName: AllNodes, obj: node("other"), want: true},
		{name: "another node", nodeName: "n1", obj: node("n2")},
		{name: "a node when none is wanted", obj: node("n1")},
		{name: "a node without a name when none is wanted", obj: node("")},
		{name: "a ServiceCIDR", nodeName: "n1", obj: serviceCIDR("a"), want: true},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, wants(test.nodeName, test.obj)) })
	}
}
