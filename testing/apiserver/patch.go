package apiserver

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// patched returns the patched object as JSON.
func patched(contentType string, old object, k kind, patch []byte) ([]byte, error) {
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch mediaType, _, _ := mime.ParseMediaType(contentType); types.PatchType(mediaType) {
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, patch, k.empty())
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch)
	case types.JSONPatchType:
		operations, decodeErr := jsonpatch.DecodePatch(patch)
		switch {
		case decodeErr != nil:
			err = decodeErr
		case len(operations) > maxOperations:
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
				"The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(operations)))
		default:
			if after, err = operations.Apply(before); err != nil { // what it names is not there, or is something else
				return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "",
					err.Error(), 0, false)
			}
		}
	default:
		return nil, notServed(resourceOf(k.gvk).GroupResource(), old.GetName(), "a patch of type "+mediaType)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return after, nil
}

// maxOperations is the maximum number of operations of a JSON patch.
const maxOperations = 10_000

// invalidPatch returns the error for a patch that makes something else of an object than one of its kind.
func invalidPatch(contentType string, patch, after []byte, err error) error {
	value := string(after)
	if mediaType, _, _ := mime.ParseMediaType(contentType); types.PatchType(mediaType) == types.StrategicMergePatchType {
		var fields map[string]any
		_ = json.Unmarshal(patch, &fields) // it has been parsed before
		value = fmt.Sprintf("%+v", fields)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), value, err.Error())})
}

// isApply reports whether a request is a server-side apply.
func isApply(r Request) bool {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.Verb == "patch" && types.PatchType(mediaType) == types.ApplyYAMLPatchType
}

// apply merges an applied configuration with the object, if there is one.
func (s *Server) apply(r Request, k kind, old object, body []byte) (object, error) {
	if r.write.manager == "" {
		return nil, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	applied := &unstructured.Unstructured{} // a typed object would also have the fields that the body lacks
	if err := yaml.Unmarshal(body, &applied.Object); err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	if applied.GroupVersionKind() != k.gvk {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%v in a request for %v", applied.GroupVersionKind(), k.gvk))
	}
	manager, err := s.fieldManager(k)
	if err != nil {
		return nil, err
	}
	merged, err := manager.Apply(live(k, old), applied, r.write.manager, r.write.force)
	if err != nil {
		return nil, err
	}
	o, ok := merged.(object)
	if !ok {
		return nil, apierrors.NewBadRequest("it is not an object of the API")
	}
	o.GetObjectKind().SetGroupVersionKind(k.gvk)
	return o, nil
}

// live returns a copy of the object that is stored, or a new one.
func live(k kind, old object) object {
	if old == nil {
		return k.empty()
	}
	return old.DeepCopyObject().(object)
}

// managed records which fields the client has set, but only where this matters: if the client names a manager, or if
// the object has managed fields already.
func (s *Server) managed(r Request, k kind, old, o object) (object, error) {
	if r.write.manager == "" && (old == nil || len(old.GetManagedFields()) == 0) {
		return o, nil
	}
	manager, err := s.fieldManager(k)
	if err != nil {
		return nil, err
	}
	name := r.write.manager
	if name == "" {
		name = "unknown"
	}
	noted, err := manager.Update(live(k, old), o, name)
	if err != nil {
		return nil, err
	}
	typed, ok := noted.(object)
	if !ok {
		return o, nil
	}
	typed.GetObjectKind().SetGroupVersionKind(k.gvk)
	return typed, nil
}

// fieldManager returns the manager of the fields of a kind. The schema is read when the first one is needed.
func (s *Server) fieldManager(k kind) (*managedfields.FieldManager, error) {
	if s.schemas == nil {
		s.schemas = applyconfigurations.NewTypeConverter(scheme.Scheme)
	}
	return managedfields.NewDefaultFieldManager(s.schemas, scheme.Scheme, noDefaults{}, scheme.Scheme, k.gvk,
		k.gvk.GroupVersion(), "", nil)
}

// noDefaults fills in nothing.
type noDefaults struct{}

// Default implements [runtime.ObjectDefaulter].
func (noDefaults) Default(runtime.Object) {}

var _ runtime.ObjectDefaulter = noDefaults{}
