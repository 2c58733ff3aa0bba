package fakemodel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// ParseYAML reads the cluster objects of a YAML text of one or more documents: Services, EndpointSlices, Nodes and
// ServiceCIDRs. A service or slice without a namespace is in "default". The error names the document and what is wrong
// with it, an unknown field for example.
func ParseYAML(text []byte) ([]metav1.Object, error) {
	var objects []metav1.Object
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		object, err := parseDocument(document)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
}

// parseDocument returns nil for a document in which there is nothing.
func parseDocument(document []byte) (metav1.Object, error) {
	var meta *metav1.TypeMeta
	if err := yaml.Unmarshal(document, &meta); err != nil || meta == nil {
		return nil, err
	}
	object, apiVersion, err := newObject(meta.Kind)
	if err != nil {
		return nil, err
	}
	if meta.APIVersion != apiVersion {
		return nil, fmt.Errorf("%s: apiVersion is %q, not %q", meta.Kind, meta.APIVersion, apiVersion)
	}
	if err := unmarshalStrict(document, object); err != nil {
		return nil, fmt.Errorf("%s: %w", meta.Kind, err)
	}
	if object.GetName() == "" {
		return nil, fmt.Errorf("%s: no name", meta.Kind)
	}
	defaultNamespace(object)
	return object, nil
}

// unmarshalStrict takes no unknown field, and no field in other letters than an API server would.
func unmarshalStrict(document []byte, object any) error {
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	strictErrs, err := json.UnmarshalStrict(asJSON, object)
	return errors.Join(append(strictErrs, err)...)
}

func newObject(kind string) (object metav1.Object, apiVersion string, err error) {
	switch kind {
	case "Service":
		return &corev1.Service{}, "v1", nil
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}, "discovery.k8s.io/v1", nil
	case "Node":
		return &corev1.Node{}, "v1", nil
	case "ServiceCIDR":
		return &networkingv1.ServiceCIDR{}, "networking.k8s.io/v1", nil
	}
	return nil, "", fmt.Errorf("unknown kind %q: want Service, EndpointSlice, Node or ServiceCIDR", kind)
}

func defaultNamespace(object metav1.Object) {
	switch object.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice:
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
	}
}
