package watch

import (
	"context"
	"fmt"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// nameStore is a reflector's store that passes everything on to a Handler and remembers only names, to find out which
// objects a new list lacks. A reflector uses it from one goroutine at a time.
type nameStore struct {
	kind    kind
	handler Handler
	details bool // keep the details of endpoints
	names   map[name]struct{}
	listed  func() // called by complete; nil afterwards

	version   string      // the last that was heard of
	event     bool        // what comes is of a change, not a bookmark
	streamed  atomic.Bool // the list that comes is streamed, which ends with a bookmark
	bookmarks bool        // the server sends them
}

// name is a key without its kind, since a store has one kind only.
type name struct{ namespace, name string }

var (
	_ cache.TransformingStore      = (*nameStore)(nil)
	_ cache.ResourceVersionUpdater = (*nameStore)(nil)
)

func newNameStore(k kind, h Handler, listed func()) *nameStore {
	return &nameStore{kind: k, handler: h, names: map[name]struct{}{}, listed: listed}
}

func nameOf(obj metav1.Object) name { return name{obj.GetNamespace(), obj.GetName()} }

// object asserts the type of what a reflector hands over.
func (s *nameStore) object(obj any) (metav1.Object, error) {
	if k, ok := kindOf(obj); !ok || k != s.kind {
		return nil, fmt.Errorf("got a %T instead of one of the %s", obj, s.kind)
	}
	return obj.(metav1.Object), nil
}

// Add is called for an object that exists.
func (s *nameStore) Add(obj any) error {
	s.event = true
	o, err := s.object(obj)
	if err != nil {
		return err
	}
	trim(o, s.details)
	s.names[nameOf(o)] = struct{}{}
	s.handler.Update(Change{Object: o})
	return nil
}

// Update is called for an object that exists.
func (s *nameStore) Update(obj any) error { return s.Add(obj) }

// Delete is called for an object that is gone, or that the selectors no longer select.
func (s *nameStore) Delete(obj any) error {
	s.event = true
	o, err := s.object(obj)
	if err != nil {
		return err
	}
	delete(s.names, nameOf(o))
	s.handler.Update(Change{Object: o, Deleted: true})
	return nil
}

// Replace is called with all existing objects, trimmed, first and whenever a watch could not be resumed. They are
// handed over with the deletions of those that have vanished, as one Update.
//
// Objects that have not changed since are handed over too: recognising them by their resourceVersion would save little,
// and fail when a cluster is restored from a backup.
//
// Deletions have the list's resourceVersion, as those that a watch reports have that of the deletion.
func (s *nameStore) Replace(objs []any, resourceVersion string) error {
	changes := make([]Change, 0, len(objs))
	names := make(map[name]struct{}, len(objs))
	for _, obj := range objs {
		o, err := s.object(obj)
		if err != nil {
			return err
		}
		names[nameOf(o)] = struct{}{}
		changes = append(changes, Change{Object: o})
	}
	for n := range s.names {
		if _, ok := names[n]; !ok {
			gone := key{s.kind, n.namespace, n.name}.deleted()
			gone.Object.SetResourceVersion(resourceVersion)
			changes = append(changes, gone)
		}
	}
	s.names = names
	if len(changes) > 0 {
		s.handler.Update(changes...)
	}
	if s.streamed.Load() {
		s.hasBookmarks()
	}
	s.heard(resourceVersion)
	s.complete()
	return nil
}

// UpdateResourceVersion is called for all that a watch says, bookmarks included, once it has been handed over.
func (s *nameStore) UpdateResourceVersion(resourceVersion string) {
	if !s.event {
		s.hasBookmarks()
	}
	s.event = false
	s.heard(resourceVersion)
}

func (s *nameStore) heard(resourceVersion string) {
	s.version = resourceVersion
	if h, ok := s.handler.(interface{ Heard(metav1.Object, string) }); ok {
		h.Heard(newObject(s.kind), resourceVersion)
	}
}

// hasBookmarks notes that the server sends bookmarks: from now on silence means that the watch is dead.
func (s *nameStore) hasBookmarks() {
	if h, ok := s.handler.(interface{ Bookmarks(metav1.Object) }); ok && !s.bookmarks {
		h.Bookmarks(newObject(s.kind))
	}
	s.bookmarks = true
}

// noted wraps a watch function. Without bookmarks, that the server begins a watch is all that is heard of it while
// nothing changes. With them it is no sign of life: one that hangs begins watches, too.
func (s *nameStore) noted(watch cache.WatchFuncWithContext) cache.WatchFuncWithContext {
	return func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
		w, err := watch(ctx, opts)
		switch {
		case err != nil:
		case opts.SendInitialEvents != nil && *opts.SendInitialEvents:
			s.streamed.Store(true)
		case !s.bookmarks && s.version != "":
			s.heard(s.version)
		}
		return w, err
	}
}

// complete records that the first list has been delivered, or need not be waited for.
func (s *nameStore) complete() {
	if s.listed != nil {
		s.listed()
		s.listed = nil
	}
}

// Resync is never called.
func (s *nameStore) Resync() error { return nil }

// Transformer is applied to the objects of a streamed list while it comes in.
func (s *nameStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		trim(obj, s.details)
		return obj, nil
	}
}
