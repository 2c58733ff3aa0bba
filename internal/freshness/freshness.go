// Package freshness notes when a source of cluster objects was last heard, kind by kind: one watch may hang while the
// others are alive.
package freshness

import (
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tracker knows when each kind of object was last heard of. The zero value has heard of none. It is safe for concurrent
// use, and its methods wait for nobody.
type Tracker struct {
	mu        sync.Mutex
	at        map[reflect.Type]time.Time
	bookmarks map[reflect.Type]bool
}

// QuietWatch is how much longer a kind may be silent of which the server sends no bookmarks. While nothing changes, all
// that is heard then is that client-go has begun another watch: it has each end after 5 to 10 minutes.
const QuietWatch = 10 * time.Minute

// Heard takes what a watch.Handler is told by its method of that name. A kind without a resourceVersion does not count:
// it is not served, or nobody knows when it will be heard of again.
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

// Bookmarks takes what a watch.Handler is told by its method of that name: the kind is heard of about every minute.
func (t *Tracker) Bookmarks(kind metav1.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bookmarks == nil {
		t.bookmarks = map[reflect.Type]bool{}
	}
	t.bookmarks[reflect.TypeOf(kind)] = true
}

// Oldest returns the kind that has not been heard of for longest, such as "EndpointSlice", and when it was; the time is
// zero if there is none. A kind without bookmarks counts as if it had been heard of later, by quiet.
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
