package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Object is an undecoded object of a document.
type Object struct {
	Item int // index in a List, starting at 1; 0 if the object is the document
	Type metav1.TypeMeta
	JSON []byte
}

// OtherKindError says that a service proxy does not use objects of this kind.
type OtherKindError struct{ metav1.TypeMeta }

func (e *OtherKindError) Error() string {
	return fmt.Sprintf("unknown kind %q: want v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node or "+
		"networking.k8s.io/v1 ServiceCIDR",
		e.APIVersion+" "+e.Kind)
}

// Objects returns the object of a document or the items of a List, and nil if the document is null. With strict, a
// duplicate key is an error.
func (d Document) Objects(strict bool) ([]Object, error) {
	data := d.Text
	if !d.JSON {
		convert := yaml.YAMLToJSON
		if strict {
			convert = yaml.YAMLToJSONStrict
		}
		var err error
		if data, err = convert(d.Text); err != nil {
			message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
			return nil, errors.New("not YAML: " + strings.TrimPrefix(message, "yaml: "))
		}
	}
	if string(data) == "null" {
		return nil, nil
	}
	type typeAndItems struct {
		metav1.TypeMeta
		Items json.RawMessage `json:"items"`
	}
	var head typeAndItems
	if err := utiljson.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("not a Kubernetes object: %w", err)
	}
	kind, isList := strings.CutSuffix(head.Kind, "List")
	switch {
	case head.Kind == "":
		return nil, errors.New("not a Kubernetes object: it has no kind")
	case head.APIVersion == "":
		return nil, fmt.Errorf("not a Kubernetes object: %s without an apiVersion", head.Kind)
	case !isList && head.Items != nil:
		return nil, fmt.Errorf("%s has items and is not a List: is the file complete?", head.Kind)
	case !isList:
		return []Object{{Type: head.TypeMeta, JSON: data}}, nil
	}
	var items []json.RawMessage
	if head.Items != nil {
		if err := utiljson.Unmarshal(head.Items, &items); err != nil {
			return nil, fmt.Errorf("items of a %s: %w", head.Kind, err)
		}
	}
	objects := make([]Object, 0, len(items))
	for i, item := range items {
		o := Object{Item: i + 1, JSON: item}
		if kind != "" { // items of a ServiceList may omit their kind
			o.Type = metav1.TypeMeta{APIVersion: head.APIVersion, Kind: kind}
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Decode returns the object, and sets a missing namespace to "default". The error is an [OtherKindError] if the object
// is to be skipped. With strict, an unknown field and a duplicate key are errors.
func (o Object) Decode(strict bool) (metav1.Object, error) {
	t := metav1.TypeMeta{}
	if err := utiljson.Unmarshal(o.JSON, &t); err != nil {
		return nil, fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if t == (metav1.TypeMeta{}) {
		t = o.Type
	}
	object, apiVersion := New(t.Kind)
	switch {
	case t.Kind == "" || t.APIVersion == "":
		return nil, fmt.Errorf("not a Kubernetes object: kind is %q, apiVersion %q", t.Kind, t.APIVersion)
	case strings.HasSuffix(t.Kind, "List"):
		return nil, fmt.Errorf("%s within a List", t.Kind)
	case object == nil || t.APIVersion != apiVersion:
		var fields map[string]json.RawMessage
		if err := utiljson.Unmarshal(o.JSON, &fields); err == nil && len(fields) < 3 && o.Item == 0 {
			return nil, fmt.Errorf("%s %s and nothing else: is the file complete?", t.APIVersion, t.Kind)
		}
		return nil, &OtherKindError{t}
	}
	if err := unmarshal(o.JSON, object, strict); err != nil {
		return nil, fmt.Errorf("%s%s: %w", t.Kind, nameIn(o.JSON), err)
	}
	if object.GetName() == "" {
		return nil, fmt.Errorf("%s without a name", t.Kind)
	}
	DefaultNamespace(object)
	return object, nil
}

// DefaultNamespace sets a missing namespace to "default", and removes the namespace of a cluster-scoped object.
func DefaultNamespace(object metav1.Object) {
	switch object.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice:
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
	default:
		object.SetNamespace("")
	}
}

// New returns an empty object of a kind and its apiVersion, or nil if a service proxy does not use the kind.
func New(kind string) (object metav1.Object, apiVersion string) {
	switch kind {
	case "Service":
		return &corev1.Service{}, "v1"
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}, "discovery.k8s.io/v1"
	case "Node":
		return &corev1.Node{}, "v1"
	case "ServiceCIDR":
		return &networkingv1.ServiceCIDR{}, "networking.k8s.io/v1"
	}
	return nil, ""
}

func unmarshal(data []byte, object any, strict bool) error {
	if !strict {
		return utiljson.Unmarshal(data, object)
	}
	strictErrs, err := strictjson.UnmarshalStrict(data, object)
	return errors.Join(append(strictErrs, err)...)
}

// nameIn returns a space and the name of an object that cannot be decoded, or "" if it has no name.
func nameIn(data []byte) string {
	var m struct {
		Metadata struct{ Namespace, Name string } `json:"metadata"`
	}
	_ = json.NewDecoder(bytes.NewReader(data)).Decode(&m)
	if name := strings.TrimPrefix(m.Metadata.Namespace+"/"+m.Metadata.Name, "/"); name != "" {
		return " " + name
	}
	return ""
}
