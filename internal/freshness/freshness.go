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
	mu sync.Mutex
	at map[reflect.Type]time.Time
}

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

// Oldest returns the kind that has not been heard of for longest, such as "EndpointSlice", and when it was; the time is
// zero if there is none.
func (t *Tracker) Oldest() (kind string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, heard := range t.at {
		if name := k.Elem().Name(); at.IsZero() || heard.Before(at) || heard.Equal(at) && name < kind {
			kind, at = name, heard
		}
	}
	return kind, at
}
