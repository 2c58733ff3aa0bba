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
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
)

// Server is an API server and its objects. It is an [http.Handler]. All methods may be called concurrently.
type Server struct {
	kinds map[schema.GroupVersionResource]kind

	mu       sync.Mutex
	release  version.Info // the Kubernetes version
	version  int64
	objects  map[schema.GroupVersionResource]map[name]object // immutable objects, with their types
	history  []event                                         // shortened by Compact
	sent     map[*stream]int64                               // versions that the active watches have reached
	oldest   int64                                           // older versions have expired
	restored bool                                            // later ones have expired too: they predate Restore
	changed  chan struct{}                                   // closed when the history grows
	cut      chan struct{}                                   // closed to end all watches
	requests []Request
	schemas  managedfields.TypeConverter // nil until fields are managed
	faults   func(context.Context, Request) Fault
}

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

// New returns a server with these objects.
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

// Set creates or replaces objects, one after the other. When it returns, new requests see them, and events are being
// sent to the watches. The server keeps copies, with a new resource version but otherwise unchanged. If it does not
// know the type of an object, it changes nothing.
func (s *Server) Set(objects ...metav1.Object) error { return s.change(objects, false) }

// Delete deletes objects by type, namespace and name, and otherwise works like Set. It ignores objects that do not
// exist.
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

// typed returns a copy of an object with its type set, and its resource.
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

// putLocked stores an object, which the server owns from then on.
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

// Bookmark sends a bookmark, after all earlier events, to all watches that allow bookmarks.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordLocked(event{})
}

// Compact expires all current resource versions and pages, and forgets the history, except events that active watches
// still have to send.
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

// Restore numbers all objects anew, beginning with 1, like a server whose storage was replaced by a copy. It ends all
// watches. Every earlier resource version and page has expired, although most are higher than those of the objects. A
// real server does not report that: it sends nothing to a watch from a higher version. See Fault.Silent.
func (s *Server) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.history, s.restored = 1, nil, true
	for _, objects := range s.objects {
		for n, o := range objects {
			s.version++
			o, _ = o.DeepCopyObject().(object) // watches that end now may still use the old one
			o.SetResourceVersion(strconv.FormatInt(s.version, 10))
			objects[n] = o
		}
	}
	s.oldest = s.version
	s.cutLocked()
}

// SetRelease sets the Kubernetes version that the server reports, "v1.37.0" by default. The kinds that it serves stay
// the same.
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

// Cut ends all watches, like a server that shuts down. They send no changes made after Cut was called.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutLocked()
}

func (s *Server) cutLocked() {
	close(s.cut)
	s.cut = make(chan struct{})
}

// Version returns the resource version of the last change.
func (s *Server) Version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// maxRequests is the number of recent requests that are kept. Older ones are dropped when there are twice as many.
const maxRequests = 10_000

// Requests returns the requests for objects and reviews in the order of arrival: all of them or, if there are more, at
// least the last 10,000.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Fault is a fault of a request. The zero value is none.
type Fault struct {
	// Err is the answer, if it is an error of k8s.io/apimachinery/pkg/api/errors, such as NewTooManyRequests. Any other
	// error closes the connection without an answer; with [Server.Config] the client gets that error.
	Err error
	// AsOf, if not 0, makes the server answer like a replica that has seen no change after this resource version: lists
	// and the initial objects of watches are those of that version, and a request for a later version fails as too large.
	// A watch then catches up. As with real replicas, requests without a resource version get the current state.
	AsOf int64
	// EndAfter ends a watch after this many events, bookmarks included. 0 means never.
	EndAfter int
	// NoEndOfList keeps a watch from sending the bookmark that ends a streamed list, like some tunnels.
	NoEndOfList bool
	// Silent keeps a watch from sending anything after its initial objects, until it times out: like a dead connection, or
	// like a real server whose storage was restored and that has not reached the resource version of the watch again.
	Silent bool
}

// SetFaults sets a function that determines the fault of each new request for objects or reviews; nil means no faults.
// f is called concurrently, before a request is answered. It may block to delay the answer, but should return when ctx
// ends, at the latest with the request.
func (s *Server) SetFaults(f func(ctx context.Context, r Request) Fault) {
	if f == nil {
		f = func(context.Context, Request) Fault { return Fault{} }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// fault records a request, and returns its fault.
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

// atLocked returns a resource's objects at a version that has not expired. They must not be changed.
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
