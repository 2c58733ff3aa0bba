package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

//go:embed coredns.yaml
var dnsManifest string

// startDNS makes the objects of CoreDNS. Its pods are ready when the proxy serves them the API.
func (m *machine) startDNS(ctx context.Context) error {
	var text bytes.Buffer
	err := template.Must(template.New("coredns.yaml").Parse(dnsManifest)).Execute(&text,
		map[string]string{"Image": dnsImage, "Domain": clusterDomain, "IPv4": dnsIPv4})
	if err != nil {
		return err
	}
	return m.apply(ctx, &text)
}

// apply creates the objects of a manifest.
func (m *machine) apply(ctx context.Context, manifest io.Reader) error {
	client, err := dynamic.NewForConfig(m.cluster.Config)
	if err != nil {
		return err
	}
	documents := yaml.NewYAMLOrJSONDecoder(manifest, 4096)
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		kind := o.GroupVersionKind()
		resources := client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version,
			Resource: strings.ToLower(kind.Kind) + "s"})
		var in dynamic.ResourceInterface = resources
		if namespace := o.GetNamespace(); namespace != "" {
			in = resources.Namespace(namespace)
		}
		if _, err := in.Create(ctx, &o, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
}
