package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
)

// Server is an API server with its objects. It is an [http.Handler]. All methods may be called concurrently.
type Server struct {
	kinds map[schema.GroupVersionResource]kind

	mu       sync.Mutex
	release  version.Info // of Kubernetes
	version  int64
	objects  map[schema.GroupVersionResource]map[name]object // immutable objects, with their types
	history  []event                                         // what is needed of it: see Compact
	sent     map[*stream]int64                               // the versions that the watches under way have reached
	oldest   int64                                           // older versions have expired
	changed  chan struct{}                                   // closed when the history grows
	cut      chan struct{}                                   // closed to end all watches
	requests []Request
	faults   func(context.Context, Request) Fault
}

// object is what is stored.
type object interface {
	metav1.Object
	runtime.Object
}

// name names an object of a resource.
type name struct{ namespace, name string }

// event is a change of an object, or a bookmark for all watches.
type event struct {
	version  int64
	resource schema.GroupVersionResource
	name     name
	old, now object // both nil: a bookmark
}

// New returns a server that has these objects.
func New(objects ...metav1.Object) (*Server, error) {
	s := &Server{
		kinds:   knownKinds(),
		release: version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.0"},
		version: 1,
		sent:    map[*stream]int64{},
		objects: map[schema.GroupVersionResource]map[name]object{},
		changed: make(chan struct{}),
		cut:     make(chan struct{}),
		faults:  func(context.Context, Request) Fault { return Fault{} },
	}
	if err := s.Set(objects...); err != nil {
		return nil, err
	}
	return s, nil
}

// Set creates or replaces objects, one after the other. When it returns every new request sees them, and the events for
// the watches are on their way. The server keeps copies, as they are but for the resource version. It changes nothing
// if it does not know the type of an object.
func (s *Server) Set(objects ...metav1.Object) error { return s.change(objects, false) }

// Delete deletes objects by their types, namespaces and names, and is otherwise like Set. Deleting what does not exist
// changes nothing.
func (s *Server) Delete(objects ...metav1.Object) error { return s.change(objects, true) }

func (s *Server) change(objects []metav1.Object, deleted bool) error {
	var errs []error
	resources := make([]schema.GroupVersionResource, len(objects))
	copies := make([]object, len(objects))
	for i, o := range objects {
		var err error
		if copies[i], resources[i], err = s.typed(o); err != nil {
			errs = append(errs, fmt.Errorf("%T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range copies {
		if deleted {
			s.deleteLocked(resources[i], nameOf(o))
		} else {
			s.putLocked(resources[i], o)
		}
	}
	return nil
}

// typed returns a copy of an object with its type, and the resource.
func (s *Server) typed(o metav1.Object) (object, schema.GroupVersionResource, error) {
	typed, ok := o.(object)
	if !ok {
		return nil, schema.GroupVersionResource{}, errors.New("not an API object")
	}
	gvks, _, err := scheme.Scheme.ObjectKinds(typed)
	if err != nil {
		return nil, schema.GroupVersionResource{}, err
	}
	resource := resourceOf(gvks[0])
	if k, ok := s.kinds[resource]; !ok || k.review {
		return nil, resource, fmt.Errorf("%v is not served", gvks[0])
	}
	typed = typed.DeepCopyObject().(object)
	typed.GetObjectKind().SetGroupVersionKind(gvks[0])
	return typed, resource, nil
}

func nameOf(o metav1.Object) name { return name{o.GetNamespace(), o.GetName()} }

// putLocked stores an object, which belongs to the server from now on.
func (s *Server) putLocked(resource schema.GroupVersionResource, o object) {
	if s.objects[resource] == nil {
		s.objects[resource] = map[name]object{}
	}
	n := nameOf(o)
	old := s.objects[resource][n]
	o.SetResourceVersion(strconv.FormatInt(s.version+1, 10))
	s.objects[resource][n] = o
	s.recordLocked(event{resource: resource, name: n, old: old, now: o})
}

// deleteLocked deletes an object, if it exists.
func (s *Server) deleteLocked(resource schema.GroupVersionResource, n name) {
	if old := s.objects[resource][n]; old != nil {
		delete(s.objects[resource], n)
		s.recordLocked(event{resource: resource, name: n, old: old})
	}
}

func (s *Server) recordLocked(e event) {
	s.version++
	e.version = s.version
	s.history = append(s.history, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Bookmark sends a bookmark to all watches that want bookmarks, after all earlier events.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordLocked(event{})
}

// Compact lets all resource versions and pages until now expire, and forgets what has happened until now, except what
// watches under way have still to send: they go on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
	needed := s.oldest
	for _, sent := range s.sent {
		needed = min(needed, sent)
	}
	s.history = slices.Clone(s.history[s.afterLocked(needed):])
}

// SetRelease sets the release of Kubernetes that the server says it is, "v1.37.0" by default. It serves the same kinds
// of objects all the same.
func (s *Server) SetRelease(release string) error {
	v, err := apiversion.ParseSemantic(release)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = version.Info{Major: strconv.Itoa(int(v.Major())), Minor: strconv.Itoa(int(v.Minor())),
		GitVersion: "v" + v.String()}
	return nil
}

// Cut ends all watches, as a server does that shuts down. They send nothing that happens after the call began.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Version returns the resource version of the last change.
func (s *Server) Version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// maxRequests is how many requests a server remembers at least, and half of what it remembers at most.
const maxRequests = 10_000

// Requests returns the last requests for objects and reviews, in the order in which they arrived: all of them if there
// were no more than 10,000, and always the last 10,000.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Fault is what goes wrong with a request. The zero value is nothing.
type Fault struct {
	// Err is the answer, if it is an error of k8s.io/apimachinery/pkg/api/errors, such as NewTooManyRequests. After
	// any other error the connection ends without an answer; with [Server.Config] that is the client's error.
	Err error
	// AsOf, if it is not 0, makes the answer that of a replica that has seen no change after this resource version: a
	// list, or the objects that a watch begins with, are those of that time, and later versions are too large. The
	// watch then catches up. As with real replicas, requests without a resource version are not affected: they ask for
	// the newest state.
	AsOf int64
	// EndAfter ends a watch after this many events, bookmarks included. 0 means never.
	EndAfter int
}

// SetFaults sets what goes wrong from now on, with new requests; nil is nothing. f is called for each request for
// objects and reviews before it is answered, concurrently. It may block to delay the answer, but should return when ctx
// ends, which it does with the request.
func (s *Server) SetFaults(f func(ctx context.Context, r Request) Fault) {
	if f == nil {
		f = func(context.Context, Request) Fault { return Fault{} }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// fault takes down a request, and returns what goes wrong with it.
func (s *Server) fault(ctx context.Context, r Request) Fault {
	s.mu.Lock()
	if len(s.requests) == 2*maxRequests {
		s.requests = slices.Clone(s.requests[maxRequests:])
	}
	s.requests = append(s.requests, r)
	f := s.faults
	s.mu.Unlock()
	return f(ctx, r)
}

// atLocked returns the objects of a resource as they were at a version that has not expired. They must not be changed.
func (s *Server) atLocked(resource schema.GroupVersionResource, version int64) map[name]object {
	objects := s.objects[resource]
	if version >= s.version {
		return objects
	}
	objects = maps.Clone(objects)
	for _, e := range slices.Backward(s.history[s.afterLocked(version):]) {
		switch {
		case e.resource != resource:
		case e.old == nil:
			delete(objects, e.name)
		default:
			objects[e.name] = e.old
		}
	}
	return objects
}

// afterLocked returns the index of the first event after a version.
func (s *Server) afterLocked(version int64) int {
	return sort.Search(len(s.history), func(i int) bool { return s.history[i].version > version })
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.serve(w, r) != nil {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
}
