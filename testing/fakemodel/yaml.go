package fakemodel

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/manifest"
)

// ParseYAML parses Services, EndpointSlices, Nodes and ServiceCIDRs, also in Lists, from one or more YAML or JSON
// documents. The namespace of services and slices defaults to "default". The error names the document and the problem,
// for example an unknown field.
func ParseYAML(text []byte) ([]metav1.Object, error) {
	var objects []metav1.Object
	for document, err := range manifest.Documents(text) {
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", document.Number, err)
		}
		found, err := document.Objects(true)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", document.Number, err)
		}
		for _, f := range found {
			object, err := f.Decode(true)
			switch {
			case err != nil && f.Item > 0:
				return nil, fmt.Errorf("document %d, item %d: %w", document.Number, f.Item, err)
			case err != nil:
				return nil, fmt.Errorf("document %d: %w", document.Number, err)
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}
