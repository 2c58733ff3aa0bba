package watch

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	s.heard(resourceVersion)
	s.complete()
	return nil
}

// UpdateResourceVersion is called for all that a watch says, bookmarks included, once it has been handed over.
func (s *nameStore) UpdateResourceVersion(resourceVersion string) { s.heard(resourceVersion) }

func (s *nameStore) heard(resourceVersion string) {
	if h, ok := s.handler.(interface{ Heard(metav1.Object, string) }); ok {
		h.Heard(newObject(s.kind), resourceVersion)
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
