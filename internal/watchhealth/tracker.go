// Package watchhealth records what a watch.Handler learns about the watches rather than about objects: when the source
// last reported each kind, because one watch may hang while the others work, and how many streamed lists are
// incomplete.
package watchhealth

import (
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tracker knows when each kind of object was last reported. The zero value has no reports. It is safe for concurrent
// use, and its methods do not block.
type Tracker struct {
	mu        sync.Mutex
	at        map[reflect.Type]time.Time
	bookmarks map[reflect.Type]bool
}

// QuietWatch is the additional time of silence allowed for kinds without bookmarks. While nothing changes, their only
// sign of life is that client-go starts another watch, every 5 to 10 minutes.
const QuietWatch = 10 * time.Minute

// Heard records a call of watch.Handler's method of that name. A kind without a resourceVersion is ignored: it is not
// served, or its next report is unpredictable.
func (t *Tracker) Heard(kind metav1.Object, resourceVersion string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if resourceVersion == "" {
		delete(t.at, reflect.TypeOf(kind))
		return
	}
	if t.at == nil {
		t.at = map[reflect.Type]time.Time{}
	}
	t.at[reflect.TypeOf(kind)] = now
}

// Bookmarks records a call of watch.Handler's method of that name: from then on the kind reports about every minute.
func (t *Tracker) Bookmarks(kind metav1.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bookmarks == nil {
		t.bookmarks = map[reflect.Type]bool{}
	}
	t.bookmarks[reflect.TypeOf(kind)] = true
}

// Oldest returns the kind with the oldest report, such as "EndpointSlice", and the time of that report, zero if there
// is none. For a kind without bookmarks, the report counts as later by quiet.
func (t *Tracker) Oldest() (kind string, at time.Time, quiet time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, heard := range t.at {
		allowed := QuietWatch
		if t.bookmarks[k] {
			allowed = 0
		}
		order := heard.Add(allowed).Compare(at.Add(quiet))
		if name := k.Elem().Name(); at.IsZero() || order < 0 || order == 0 && name < kind {
			kind, at, quiet = name, heard, allowed
		}
	}
	return kind, at, quiet
}
