package apiserver

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// Request is a client's request for objects, or a review.
type Request struct {
	// Verb is get, list, watch, create, update, patch or delete, as in RBAC rules.
	Verb     string
	Resource schema.GroupVersionResource
	// Namespace and Name are empty if the path has none, as for a list of all namespaces.
	Namespace, Name, Subresource string
	// Options are the options of a list or watch.
	Options metav1.ListOptions
	// Header has the request's headers. It must not be changed.
	Header http.Header

	write writeOptions
}

// writeOptions are the options of a request that changes something.
type writeOptions struct {
	dryRun  bool
	invalid string // a value of dryRun that does not exist
	manager string // of the fields
	force   bool
	strict  bool // unknown and duplicate fields are errors
}

// StreamsList reports whether the request is a watch that begins with the existing objects and a bookmark after them.
func (r Request) StreamsList() bool {
	return r.Verb == "watch" && r.Options.SendInitialEvents != nil && *r.Options.SendInitialEvents
}

// String returns the verb and the resource, for messages.
func (r Request) String() string { return r.Verb + " " + r.Resource.GroupResource().String() }

// parse parses an HTTP request. ok is false if its path is not below a group and version.
func parse(r *http.Request) (_ Request, ok bool) {
	q := Request{Header: r.Header}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		q.Resource.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		q.Resource.Group, q.Resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return q, false
	}
	// Namespaces are also objects, with subresources.
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		q.Namespace, parts = parts[1], parts[2:]
	}
	q.Resource.Resource = parts[0]
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	q.Subresource = strings.Join(parts[min(2, len(parts)):], "/")
	query := r.URL.Query()
	q.write = writeOptions{dryRun: query.Get("dryRun") == metav1.DryRunAll, manager: query.Get("fieldManager"),
		force: query.Get("force") == "true", strict: query.Get("fieldValidation") == metav1.FieldValidationStrict}
	if query.Has("dryRun") && !q.write.dryRun {
		q.write.invalid = "dryRun: " + query.Get("dryRun")
	}
	switch r.Method {
	case http.MethodGet:
		_ = metav1.Convert_url_Values_To_v1_ListOptions(&query, &q.Options, nil) // malformed options are not set
		switch {
		case q.Options.Watch:
			q.Verb = "watch"
		case q.Name == "":
			q.Verb = "list"
		default:
			q.Verb = "get"
		}
	case http.MethodPost:
		q.Verb = "create"
	case http.MethodPut:
		q.Verb = "update"
	case http.MethodPatch:
		q.Verb = "patch"
	case http.MethodDelete:
		q.Verb = "delete"
	}
	return q, true
}

// serve answers a request. On an error the connection has to be closed, without an answer or in the middle of one.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	q, ok := parse(r)
	if !ok {
		return s.serveDiscovery(w, r)
	}
	f := s.fault(r.Context(), q)
	if err := r.Context().Err(); err != nil {
		return err
	}
	err := f.Err
	code, answer := http.StatusOK, runtime.Object(nil)
	k, known := s.kinds[q.Resource]
	var status apierrors.APIStatus
	switch {
	case err != nil && !errors.As(err, &status):
		return err
	case err != nil:
	case !known, q.Subresource != "" && q.Subresource != "status" && q.Subresource != "finalize":
		err = apierrors.NewNotFound(q.Resource.GroupResource(), q.Name)
	case k.review && q.Verb != "create":
		err = apierrors.NewMethodNotSupported(q.Resource.GroupResource(), q.Verb)
	case q.Verb == "watch":
		return s.watch(w, r, q, k, f)
	case q.Verb == "list":
		answer, err = s.list(q, k, f)
	case q.Verb == "get":
		answer, err = s.get(q)
	default:
		var body []byte
		if body, err = io.ReadAll(r.Body); err != nil {
			return err
		}
		var created bool
		if answer, created, err = s.write(q, k, body); created {
			code = http.StatusCreated
		}
	}
	if err != nil {
		return writeError(w, r, err)
	}
	return write(w, r, code, answer)
}

// representation is the form in which objects are sent.
type representation struct {
	runtime.SerializerInfo
	metadata bool // only the metadata
}

// represented negotiates the representation of objects. Tables are not served: clients that ask for them get the
// objects.
func represented(r *http.Request) (representation, error) {
	supported := scheme.Codecs.SupportedMediaTypes()
	accept := r.Header.Get("Accept")
	for _, entry := range strings.Split(accept, ",") {
		mediaType, params, err := mime.ParseMediaType(entry)
		if mediaType == "*/*" || mediaType == "application/*" || accept == "" {
			mediaType, err = runtime.ContentTypeJSON, nil
		}
		metadata := strings.HasPrefix(params["as"], "PartialObjectMetadata") && params["g"] == metav1.GroupName &&
			params["v"] == "v1"
		if err != nil || params["as"] != "" && !metadata {
			continue
		}
		if info, ok := runtime.SerializerInfoForMediaType(supported, mediaType); ok {
			return representation{info, metadata}, nil
		}
	}
	return representation{}, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, r.Method,
		schema.GroupResource{}, "", fmt.Sprintf("none of %q is served", accept), 0, true)
}

// of returns an object in the form in which it is sent.
func (r representation) of(o runtime.Object) runtime.Object {
	if !r.metadata {
		return o
	}
	switch o := o.(type) {
	case *metav1.Status:
		return o
	case object:
		return metadataOf(o)
	}
	list, err := meta.ListAccessor(o)
	if err != nil {
		return o
	}
	all := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion(),
		Continue: list.GetContinue(), RemainingItemCount: list.GetRemainingItemCount()}}
	all.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
	_ = meta.EachListItem(o, func(item runtime.Object) error { // returns the function's errors alone
		if typed, ok := item.(object); ok {
			all.Items = append(all.Items, *metadataOf(typed))
		}
		return nil
	})
	return all
}

func metadataOf(o object) *metav1.PartialObjectMetadata {
	m := meta.AsPartialObjectMetadata(o)
	m.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	return m
}

// write answers with an object, which must have its type set.
func write(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) error {
	as, err := represented(r)
	if err != nil {
		return writeError(w, r, err)
	}
	data, err := runtime.Encode(as.Serializer, as.of(o))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", as.MediaType)
	w.WriteHeader(code)
	_, err = w.Write(data)
	return err
}

// writeError answers with the status of an error.
func writeError(w http.ResponseWriter, r *http.Request, err error) error {
	status := statusOf(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	if _, err := represented(r); err != nil {
		r = r.Clone(r.Context())
		r.Header.Del("Accept")
	}
	return write(w, r, int(status.Code), status)
}

func statusOf(err error) *metav1.Status {
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		api = apierrors.NewInternalError(err)
	}
	status := api.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}

// selection returns the selector of a list or watch.
func (r Request) selection(k kind) (func(o object) bool, error) {
	byLabels, err := labels.Parse(r.Options.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byFields, err := fields.ParseSelector(r.Options.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	known := selectable{k.empty()}
	for _, req := range byFields.Requirements() {
		if !known.Has(req.Field) {
			return nil, apierrors.NewBadRequest("field label not supported: " + req.Field)
		}
	}
	return func(o object) bool {
		return o != nil && (r.Namespace == "" || o.GetNamespace() == r.Namespace) &&
			(r.Name == "" || o.GetName() == r.Name) &&
			byLabels.Matches(labels.Set(o.GetLabels())) && byFields.Matches(selectable{o})
	}, nil
}
