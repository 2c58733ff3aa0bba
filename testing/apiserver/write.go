package apiserver

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

// write creates, updates, patches or deletes an object, or answers a review. created: a new object was made.
func (s *Server) write(r Request, k kind, body []byte) (answer runtime.Object, created bool, err error) {
	resource := r.Resource.GroupResource()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[r.Resource][name{r.Namespace, r.Name}]
	applied := isApply(r)
	switch {
	case r.Verb == "" || (r.Verb == "create") != (r.Name == ""):
		return nil, false, apierrors.NewMethodNotSupported(resource, r.Verb)
	case r.write.invalid != "":
		return nil, false, apierrors.NewBadRequest("unknown value of " + r.write.invalid)
	case r.Verb != "create" && old == nil && !applied:
		return nil, false, apierrors.NewNotFound(resource, r.Name)
	case r.Verb == "delete":
		answer, err = s.deleteIf(r, k, old, body)
		return answer, false, err
	}
	o, err := s.desired(r, k, old, body)
	switch {
	case err != nil:
		return nil, false, err
	case k.review:
		approve(o)
		return o, true, nil
	case old == nil:
		if err := s.prepare(r, o); err != nil {
			return nil, false, err
		}
	default:
		if err := mayReplace(r, old, o); err != nil {
			return nil, false, err
		}
	}
	if o.GetName() == "" || o.GetNamespace() != r.Namespace || r.Name != "" && o.GetName() != r.Name {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("the name %s/%s of the object is not that of the request",
			o.GetNamespace(), o.GetName()))
	}
	if !applied {
		if o, err = s.managed(r, k, old, o); err != nil {
			return nil, false, err
		}
	}
	switch {
	case old != nil && unchanged(old, o):
		return old, false, nil
	case r.write.dryRun:
		if old != nil {
			o.SetResourceVersion(old.GetResourceVersion())
		}
		return o, old == nil, nil
	}
	s.putLocked(r.Resource, o)
	return o, old == nil, nil
}

// desired returns the object that a request wants, before the server completes it.
func (s *Server) desired(r Request, k kind, old object, body []byte) (o object, err error) {
	switch {
	case isApply(r):
		o, err = s.apply(r, k, old, body)
	case r.Verb == "patch":
		contentType := r.Header.Get("Content-Type")
		after, patchErr := patched(contentType, old, k, body)
		if patchErr != nil {
			return nil, patchErr
		}
		if o, err = parseObject(after, k, r.write.strict); err != nil {
			err = invalidPatch(contentType, body, after, err)
		}
	default:
		if err = mayDecode(r); err == nil {
			o, err = decode(body, k, r.write.strict)
		}
	}
	if err == nil && !k.review && o.GetNamespace() == "" {
		o.SetNamespace(r.Namespace)
	}
	return o, err
}

// prepare completes a new object.
func (s *Server) prepare(r Request, o object) error {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	if s.objects[r.Resource][nameOf(o)] != nil {
		return apierrors.NewAlreadyExists(r.Resource.GroupResource(), o.GetName())
	}
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	o.SetResourceVersion("")
	return nil
}

// mayReplace completes a new version of an object. It returns an error if the client means another object, or another
// version of it.
func mayReplace(r Request, old, o object) error {
	resource := r.Resource.GroupResource()
	switch {
	case o.GetUID() != "" && o.GetUID() != old.GetUID():
		return apierrors.NewConflict(resource, r.Name, fmt.Errorf("it has the UID %s, not %s", old.GetUID(), o.GetUID()))
	case o.GetResourceVersion() != "" && o.GetResourceVersion() != old.GetResourceVersion():
		return apierrors.NewConflict(resource, r.Name, fmt.Errorf("it has the version %s, not %s",
			old.GetResourceVersion(), o.GetResourceVersion()))
	}
	o.SetUID(old.GetUID())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	return nil
}

// unchanged reports whether a new version of an object differs only in fields that the server sets.
func unchanged(old, o object) bool {
	a, b := old.DeepCopyObject().(object), o.DeepCopyObject().(object)
	for _, o := range []object{a, b} {
		o.SetResourceVersion("")
		fields := o.GetManagedFields()
		for i := range fields {
			fields[i].Time = nil
		}
		o.SetManagedFields(fields)
	}
	return equality.Semantic.DeepEqual(a, b)
}

// deleteIf deletes an object that meets the preconditions.
func (s *Server) deleteIf(r Request, k kind, o object, body []byte) (runtime.Object, error) {
	var options metav1.DeleteOptions
	if len(body) > 0 {
		if err := mayDecode(r); err != nil {
			return nil, err
		}
		// The kind is not always given, or is that of another group.
		gvk := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &gvk, &options); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if p := options.Preconditions; p != nil {
		var err error
		if p.UID != nil && *p.UID != o.GetUID() {
			err = fmt.Errorf("it has the UID %s, not %s", o.GetUID(), *p.UID)
		} else if p.ResourceVersion != nil && *p.ResourceVersion != o.GetResourceVersion() {
			err = fmt.Errorf("it has the version %s, not %s", o.GetResourceVersion(), *p.ResourceVersion)
		}
		if err != nil {
			return nil, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, err)
		}
	}
	if !r.write.dryRun && len(options.DryRun) == 0 {
		s.deleteLocked(r.Resource, nameOf(o))
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: o.GetName(), Group: k.gvk.Group, Kind: r.Resource.Resource,
			UID: o.GetUID()}}, nil
}

// mayDecode returns an error if a body is of a type that is not served, such as CBOR.
func mayDecode(r Request) error {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if _, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType); ok || mediaType == "" {
		return nil
	}
	return notServed(r.Resource.GroupResource(), r.Name, "a body of type "+mediaType)
}

func notServed(resource schema.GroupResource, name, what string) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "write", resource, name,
		what+" is not served", 0, true)
}

// decode parses the object in a body.
func decode(body []byte, k kind, strict bool) (object, error) {
	o, err := parseObject(body, k, strict)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %[1]s: %[3]v", k.gvk.Kind,
			k.gvk.Version, err))
	}
	return o, nil
}

// parseObject parses an object of a kind.
func parseObject(body []byte, k kind, strict bool) (object, error) {
	decoder := scheme.Codecs.UniversalDeserializer()
	if strict && !bytes.HasPrefix(body, []byte("k8s\x00")) { // protobuf
		decoder = serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
			serializerjson.SerializerOptions{Yaml: true, Strict: true}) // JSON is YAML
	}
	decoded, gvk, err := decoder.Decode(body, &k.gvk, nil)
	if err != nil {
		return nil, err
	}
	o, ok := decoded.(object)
	if !ok || *gvk != k.gvk {
		return nil, fmt.Errorf("it is a %v", gvk)
	}
	o.GetObjectKind().SetGroupVersionKind(k.gvk)
	return o, nil
}

// approve approves a review.
func approve(o object) {
	switch o := o.(type) {
	case *authenticationv1.TokenReview:
		o.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
			User: authenticationv1.UserInfo{Username: "kubernetes-admin", Groups: []string{"system:masters"}}}
	case *authorizationv1.SubjectAccessReview:
		o.Status.Allowed = true
	case *authorizationv1.LocalSubjectAccessReview:
		o.Status.Allowed = true
	case *authorizationv1.SelfSubjectAccessReview:
		o.Status.Allowed = true
	}
}
