package fakemodel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseYAML(t *testing.T) {
	objects, err := ParseYAML([]byte(`
# a comment, and an empty document
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns, name: web-1}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5]}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
`))
	require.NoError(t, err)
	require.Len(t, objects, 4)
	assert.Equal(t, "default", objects[0].GetNamespace())
	assert.EqualValues(t, 80, objects[0].(*corev1.Service).Spec.Ports[0].Port)
	assert.Equal(t, "ns", objects[1].GetNamespace())
	assert.Equal(t, []string{"10.244.1.5"}, objects[1].(*discoveryv1.EndpointSlice).Endpoints[0].Addresses)
	assert.Equal(t, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, objects[2])
	assert.Equal(t, []string{"10.96.0.0/16"}, objects[3].(*networkingv1.ServiceCIDR).Spec.CIDRs)

	objects, err = ParseYAML([]byte(`{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "web"}}]}
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}`))
	require.NoError(t, err)
	require.Len(t, objects, 2, "JSON and Lists, as package watch")

	objects, err = ParseYAML(nil)
	require.NoError(t, err)
	assert.Empty(t, objects)
}

func TestParseYAMLNamesProblems(t *testing.T) {
	const good = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\n"
	tests := []struct{ name, text, want string }{
		{"no YAML", good + "a: [", "document 2: "},
		{"no object", good + "[1, 2]", "document 2: "},
		{"no kind", good + "metadata: {name: n1}", `document 2: not a Kubernetes object: it has no kind`},
		{"an unknown kind", good + "apiVersion: v1\nkind: Pod\nmetadata: {name: x}",
			`document 2: unknown kind "v1 Pod": want v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node or`},
		{"another version", good + "apiVersion: v1\nkind: EndpointSlice\nmetadata: {name: x}",
			`document 2: unknown kind "v1 EndpointSlice": want v1 Service, discovery.k8s.io/v1 EndpointSlice`},
		{"an unknown field", good + "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {clusterIp: 10.96.0.10}",
			`unknown field "spec.clusterIp"`},
		{"a field twice", good + "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: a, type: b}",
			`key "type" already set`},
		{"a value of another type", good + "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 80}",
			"document 2: Service x: json: cannot unmarshal number"},
		{"no name", good + "apiVersion: v1\nkind: Service", "document 2: Service without a name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects, err := ParseYAML([]byte(tt.text))
			require.ErrorContains(t, err, tt.want)
			assert.Nil(t, objects)
		})
	}
}
