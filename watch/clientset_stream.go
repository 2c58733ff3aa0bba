package watch

import (
	"errors"
	"reflect"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// A streamed list ends with a bookmark. Some tunnels and proxies drop it: then client-go waits forever, although all
// objects have come.
const (
	// streamQuiet is how long a streamed list may send nothing that existed when it began before it is given up.
	streamQuiet = 30 * time.Second
	// maxIncomplete is how many streamed lists in a row may break off before they are given up.
	maxIncomplete = 3
)

// errIncomplete makes a reflector list without streaming.
var errIncomplete = errors.New("streamed lists stay incomplete")

// errNothingSent is the error of an empty watch, for which client-go has none.
var errNothingSent = errors.New("the connection timed out, or was closed before the server had sent anything")

// timer is what a stream uses of a [time.Timer].
type timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// afterFunc is [time.AfterFunc].
func afterFunc(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }

// stream gives up streamed lists that do not end. The reflector's goroutine uses it, and the timer.
type stream struct {
	after func(d time.Duration, f func()) timer // afterFunc, but for tests

	mu       sync.Mutex
	watch    apiwatch.Interface // of the list that is streamed now; nil if none is
	timer    timer              // gives it up
	begun    int                // lists since the last complete one
	objects  int                // received from the latest
	newest   uint64             // resourceVersion of these
	empty    int                // lists in a row that were closed before anything was sent
	lost     bool               // streamed lists do not end here
	reported bool               // lost has been reported
}

// isEmpty reports whether a watch is what client-go returns, without an error, for a connection that could not be made
// in time, or was closed at once.
func isEmpty(w apiwatch.Interface) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(apiwatch.NewEmptyWatch())
}

// nothingSent records that a streamed list was closed at once. Every third time it returns true, and the reflector
// lists once without streaming: something on the way may close idle connections, and the error of a plain list says why
// a server cannot be reached.
func (s *stream) nothingSent() (listOnce bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.empty++
	return s.empty%maxIncomplete == 0
}

// usable reports whether to stream the next list. The first time that it is not, it logs that and calls report.
func (s *stream) usable(logger klog.Logger, report func()) bool {
	s.mu.Lock()
	s.stop()
	s.lost = s.lost || s.begun >= maxIncomplete
	lost, reported, objects := s.lost, s.reported, s.objects
	s.reported = lost
	s.mu.Unlock()
	if lost && !reported {
		logIncomplete(logger, "objects", objects)
		report()
	}
	return !lost
}

// logIncomplete says that streamed lists are given up, with something about them.
func logIncomplete(logger klog.Logger, key string, value any) {
	logger.Error(nil, "A streamed list does not end: does a tunnel or proxy on the way to the API server drop the "+
		"bookmark k8s.io/initial-events-end? Listing without streaming", key, value)
}

// begin records that a list is being streamed.
func (s *stream) begin(w apiwatch.Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch, s.objects, s.newest = w, 0, 0
	s.begun++
	s.timer = s.after(streamQuiet, func() { s.giveUp(w) })
}

// giveUp ends a streamed list, so that the reflector begins another one.
func (s *stream) giveUp(w apiwatch.Interface) {
	s.mu.Lock()
	current := s.watch == w
	s.lost = s.lost || current
	s.mu.Unlock()
	if current {
		w.Stop()
	}
}

// sent records an object of a streamed list. After the whole list a server goes on with changes, each newer than
// everything before. These do not restart the timer: in a busy cluster it would never fire.
func (s *stream) sent(resourceVersion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects++
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err == nil && version > s.newest {
		s.newest = version
		return
	}
	if s.watch != nil {
		s.timer.Reset(streamQuiet)
	}
}

// ended records that a list is complete.
func (s *stream) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.begun, s.empty = 0, 0
}

// stop stops waiting for the end. The caller holds mu.
func (s *stream) stop() {
	if s.watch != nil {
		s.timer.Stop()
		s.watch = nil
	}
}

// reportIncomplete tells a handler that has the method ListIncomplete that streamed lists of a kind do not end.
func reportIncomplete(h Handler, k kind) {
	if h, ok := h.(interface{ ListIncomplete(metav1.Object) }); ok {
		h.ListIncomplete(newObject(k))
	}
}
