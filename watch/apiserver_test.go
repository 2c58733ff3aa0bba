package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiServer is what a real API server does and client-go's fake clientset does not: field selectors, resource versions,
// a history that is compacted (410), streamed lists, bookmarks, objects that leave a selector, and errors. It is an
// http.RoundTripper without a network, so that tests can run under synctest.
type apiServer struct {
	t *testing.T

	mu       sync.Mutex
	version  int
	objects  map[key]object
	history  []event
	oldest   int           // watches from before this version are answered with 410
	changed  chan struct{} // closed when there is something new for watches
	drop     chan struct{} // closed to end all watches
	requests []request
	// refuse, if it returns an error, is the answer to a request.
	refuse func(r request) error
}

// event is a change of an object.
type event struct {
	version  int
	old, new object
}

// request is what the server was asked.
type request struct {
	kind   kind
	verb   string // "list", "watch", "watch-list"
	labels string
	fields string
	accept string
}

func newAPIServer(t *testing.T, objs ...object) *apiServer {
	s := &apiServer{
		t: t, version: 1, objects: map[key]object{}, changed: make(chan struct{}), drop: make(chan struct{}),
		refuse: func(request) error { return nil },
	}
	s.apply(objs...)
	return s
}

func (s *apiServer) client() kubernetes.Interface {
	c, err := kubernetes.NewForConfig(restConfig(s))
	require.NoError(s.t, err)
	return c
}

// noWatchList makes the server one that cannot stream lists.
func noWatchList(r request) error {
	if r.verb == "watch-list" {
		return apierrors.NewBadRequest("sendInitialEvents is forbidden")
	}
	return nil
}

// apply creates or replaces objects.
func (s *apiServer) apply(objs ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objs {
		obj = obj.DeepCopyObject().(object)
		k := keyOf(obj)
		s.version++
		obj.SetResourceVersion(strconv.Itoa(s.version))
		s.history = append(s.history, event{version: s.version, old: s.objects[k], new: obj})
		s.objects[k] = obj
	}
	s.notifyLocked()
}

// remove deletes objects.
func (s *apiServer) remove(objs ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objs {
		k := keyOf(obj)
		s.version++
		s.history = append(s.history, event{version: s.version, old: s.objects[k]})
		delete(s.objects, k)
	}
	s.notifyLocked()
}

func (s *apiServer) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets the history. Watches under way go on.
func (s *apiServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
}

// disconnect ends all watches.
func (s *apiServer) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.drop)
	s.drop = make(chan struct{})
}

// setRefuse sets what is answered with an error; nil is nothing.
func (s *apiServer) setRefuse(f func(request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == nil {
		f = func(request) error { return nil }
	}
	s.refuse = f
}

// asked returns the requests so far.
func (s *apiServer) asked() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// RoundTrip answers a request.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	req := request{
		kind: kindOfPath(s.t, r.URL.Path), verb: "list",
		labels: query.Get("labelSelector"), fields: query.Get("fieldSelector"), accept: r.Header.Get("Accept"),
	}
	if query.Get("watch") != "" && query.Get("watch") != "false" {
		req.verb = "watch"
		if query.Get("sendInitialEvents") == "true" {
			req.verb = "watch-list"
		}
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	refuse := s.refuse
	s.mu.Unlock()
	if err := refuse(req); err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			return nil, err
		}
		st := status.Status()
		return answer(int(st.Code), io.NopCloser(strings.NewReader(encode(s.t, &st, "v1", "Status")))), nil
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	selected := s.selector(req)
	if req.verb == "list" {
		return answer(http.StatusOK, io.NopCloser(strings.NewReader(s.list(req.kind, selected)))), nil
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	body, w := io.Pipe()
	go func() { _ = w.CloseWithError(s.watch(r, req, from, selected, w)) }()
	return answer(http.StatusOK, body), nil
}

func answer(code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       body,
	}
}

// selector is the server's side of S1.
func (s *apiServer) selector(r request) func(object) bool {
	ls, err := labels.Parse(r.labels)
	require.NoError(s.t, err)
	fs, err := fields.ParseSelector(r.fields)
	require.NoError(s.t, err)
	return func(obj object) bool {
		if obj == nil {
			return false
		}
		set := fields.Set{"metadata.name": obj.GetName()}
		if svc, ok := obj.(*corev1.Service); ok {
			set["spec.clusterIP"] = svc.Spec.ClusterIP
		}
		return ls.Matches(labels.Set(obj.GetLabels())) && fs.Matches(set)
	}
}

func (s *apiServer) list(k kind, selected func(object) bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []json.RawMessage{}
	for _, obj := range s.objects {
		if keyOf(obj).kind == k && selected(obj) {
			items = append(items, json.RawMessage(encodeObject(s.t, obj)))
		}
	}
	apiVersion, kindName := typeOf(k)
	return encode(s.t, map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	}, apiVersion, kindName+"List")
}

// watch writes events until the request or the connection ends.
func (s *apiServer) watch(r *http.Request, req request, from int, selected func(object) bool, w io.Writer) error {
	send := func(eventType string, obj string) error {
		_, err := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", eventType, obj)
		return err
	}
	s.mu.Lock()
	drop := s.drop
	gone := from < s.oldest && req.verb == "watch"
	var initial []string
	if req.verb == "watch-list" {
		from = s.version
		for _, obj := range s.objects {
			if keyOf(obj).kind == req.kind && selected(obj) {
				initial = append(initial, encodeObject(s.t, obj))
			}
		}
	}
	s.mu.Unlock()
	if gone {
		status := apierrors.NewResourceExpired("too old resource version").Status()
		return send("ERROR", encode(s.t, &status, "v1", "Status"))
	}
	if req.verb == "watch-list" {
		for _, obj := range initial {
			if err := send("ADDED", obj); err != nil {
				return err
			}
		}
		if err := send("BOOKMARK", s.bookmark(req.kind, from, true)); err != nil {
			return err
		}
	}
	for {
		s.mu.Lock()
		changed := s.changed
		var events []event
		for _, e := range s.history {
			if e.version > from {
				events = append(events, e)
			}
		}
		s.mu.Unlock()
		for _, e := range events {
			from = e.version
			obj := e.new
			if obj == nil {
				obj = e.old
			}
			if keyOf(obj).kind != req.kind {
				continue
			}
			was, is := selected(e.old), selected(e.new)
			var eventType string
			switch {
			case was && is:
				eventType = "MODIFIED"
			case is:
				eventType = "ADDED"
			case was:
				eventType = "DELETED"
				obj = e.old.DeepCopyObject().(object)
				obj.SetResourceVersion(strconv.Itoa(e.version))
			default:
				continue
			}
			if err := send(eventType, encodeObject(s.t, obj)); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-drop:
			return io.EOF
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (s *apiServer) bookmark(k kind, version int, initialEnd bool) string {
	obj := newObject(k)
	obj.SetResourceVersion(strconv.Itoa(version))
	if initialEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return encodeObject(s.t, obj)
}

func kindOfPath(t *testing.T, path string) kind {
	switch path[strings.LastIndex(path, "/")+1:] {
	case "services":
		return services
	case "endpointslices":
		return endpointSlices
	case "nodes":
		return nodes
	case "servicecidrs":
		return serviceCIDRs
	}
	t.Errorf("unexpected request for %s", path)
	return 0
}

func typeOf(k kind) (apiVersion, kindName string) {
	switch k {
	case services:
		return "v1", "Service"
	case endpointSlices:
		return "discovery.k8s.io/v1", "EndpointSlice"
	case nodes:
		return "v1", "Node"
	default:
		return "networking.k8s.io/v1", "ServiceCIDR"
	}
}

func encodeObject(t *testing.T, obj object) string {
	apiVersion, kindName := typeOf(keyOf(obj).kind)
	return encode(t, obj, apiVersion, kindName)
}

// encode returns v as JSON with its type.
func encode(t *testing.T, v any, apiVersion, kindName string) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	m := map[string]any{}
	require.NoError(t, json.Unmarshal(data, &m))
	m["apiVersion"], m["kind"] = apiVersion, kindName
	data, err = json.Marshal(m)
	require.NoError(t, err)
	return string(data)
}

// roundTripper is an http.RoundTripper made of a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func restConfig(rt http.RoundTripper) *rest.Config {
	return &rest.Config{Host: "http://api", Transport: rt, QPS: -1}
}

func countIn(s, substring string) int { return strings.Count(s, substring) }
