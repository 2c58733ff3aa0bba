package watch

import (
	"context"
	"fmt"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/consistencydetector"
	"k8s.io/klog/v2"
)

// nameStore is a reflector's store that passes everything on to a Handler and remembers only names, to find out which
// objects a new list lacks. A reflector uses it from one goroutine at a time.
type nameStore struct {
	kind    kind
	handler Handler
	keep    kept
	names   map[name]struct{}
	listed  func() // called once, by complete; nil afterwards

	version   string      // the last that was received
	event     bool        // the version being received is that of a change, not of a bookmark
	streamed  atomic.Bool // the current list is streamed, so it ends with a bookmark
	bookmarks bool        // the server sends them
	stream    stream
	silence   silence
	outage    *outage
}

// name is a key without its kind, since a store has one kind only.
type name struct{ namespace, name string }

var (
	_ cache.TransformingStore      = (*nameStore)(nil)
	_ cache.ResourceVersionUpdater = (*nameStore)(nil)
)

func newNameStore(k kind, h Handler, listed func()) *nameStore {
	return &nameStore{kind: k, handler: h, names: map[name]struct{}{}, listed: listed, outage: &outage{},
		stream: stream{after: afterFunc}}
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
	trim(o, s.keep)
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
// handed over with the deletions of those that have vanished, as one Update. A first list that was streamed has only
// the keys, because its objects have been handed over: see Transformer.
//
// Objects that have not changed since are handed over too: recognising them by their resourceVersion would save little,
// and fail when a cluster is restored from a backup.
//
// Deletions get the list's resourceVersion. (Those that a watch reports have the version of the deletion.)
func (s *nameStore) Replace(objs []any, resourceVersion string) error {
	changes, err := s.differences(objs, resourceVersion)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		s.handler.Update(changes...)
	}
	s.stream.ended()
	if s.streamed.Load() {
		s.hasBookmarks()
	}
	if s.silence.listed(resourceVersion, s.streamed.Load()) {
		reportSilent(s.handler, s.kind)
	}
	s.heard(resourceVersion)
	s.complete()
	return nil
}

// differences returns what Replace has to hand over, and stores the names.
func (s *nameStore) differences(objs []any, resourceVersion string) ([]Change, error) {
	if s.hasHandedOver(objs) {
		return nil, nil
	}
	var changes []Change
	names := make(map[name]struct{}, len(objs))
	for _, obj := range objs {
		if k, ok := obj.(cache.ExplicitKey); ok {
			n, err := nameOfKey(k)
			if err != nil {
				return nil, err
			}
			names[n] = struct{}{}
			continue
		}
		o, err := s.object(obj)
		if err != nil {
			return nil, err
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
	return changes, nil
}

// hasHandedOver reports whether a list consists of the keys of exactly those objects that have been handed over: a
// streamed list that did not break off. Then no second map of names is needed.
func (s *nameStore) hasHandedOver(objs []any) bool {
	for _, obj := range objs {
		if _, ok := obj.(cache.ExplicitKey); !ok {
			return false
		}
	}
	return len(objs) == len(s.names) // Transformer has noted each of the keys
}

// UpdateResourceVersion is called for everything that a watch sends, bookmarks included, after it has been handed over.
func (s *nameStore) UpdateResourceVersion(resourceVersion string) {
	if !s.event {
		s.hasBookmarks()
	}
	s.silence.heard(resourceVersion, !s.event)
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

// noted wraps a watch function. If the server sends no bookmarks, the begin of a watch is its only sign of life while
// nothing changes. With bookmarks it is not a sign of life: a server that hangs begins watches, too. After a silence
// the next watch fails, so that the reflector lists, and that list has no version.
func (s *nameStore) noted(watch cache.WatchFuncWithContext) cache.WatchFuncWithContext {
	return func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
		streams := opts.SendInitialEvents != nil && *opts.SendInitialEvents
		if streams && !s.mayStream(ctx) {
			return nil, errIncomplete
		}
		if s.silence.listsAnew() {
			if !streams {
				return nil, newListAnewError()
			}
			opts.ResourceVersion = ""
		}
		answered := s.outage.awaiting(ctx)
		w, err := watch(ctx, opts)
		answered()
		cause := err
		if err == nil && isEmpty(w) {
			if cause = errNothingSent; streams && s.stream.nothingSent() {
				err = errNothingSent
			}
		}
		if ctx.Err() == nil {
			s.outage.note(klog.FromContext(ctx), cause)
		}
		if cause == nil {
			w = newEndable(w)
			s.silence.begun(w, streams)
		}
		switch {
		case cause != nil:
		case streams:
			s.streamed.Store(true)
			s.stream.begin(w)
		case !s.bookmarks && s.version != "":
			s.heard(s.version)
		}
		return w, err
	}
}

// mayStream reports whether to stream the next list. The first time that it is not, it tells the handler.
func (s *nameStore) mayStream(ctx context.Context) bool {
	return s.stream.usable(klog.FromContext(ctx), func() { reportIncomplete(s.handler, s.kind) })
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

// Transformer is applied to the objects of a streamed list while it comes in, on the goroutine that calls everything
// else. client-go keeps what it returns until the list is complete.
//
// The objects of the first list are handed over at once, and only their keys are kept: otherwise the objects of the
// whole cluster would be in memory at the same time. Nothing is applied before all lists are complete, so nobody sees a
// part of one. If the list breaks off, another one follows, and Replace deletes what that lacks.
func (s *nameStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(metav1.Object); ok {
			s.stream.sent(o.GetResourceVersion())
		}
		trim(obj, s.keep)
		// Kubernetes' own tests have client-go compare the objects that it keeps with those of another list.
		if s.listed == nil || consistencydetector.IsDataConsistencyDetectionForWatchListEnabled() {
			return obj, nil
		}
		o, err := s.object(obj)
		if err != nil {
			return nil, err
		}
		s.names[nameOf(o)] = struct{}{}
		s.handler.Update(Change{Object: o})
		return cache.ExplicitKey(cache.MetaObjectToName(o).String()), nil
	}
}

// nameOfKey returns the name that a key of client-go's stores has.
func nameOfKey(k cache.ExplicitKey) (name, error) {
	n, err := cache.ParseObjectName(string(k))
	return name{n.Namespace, n.Name}, err
}
