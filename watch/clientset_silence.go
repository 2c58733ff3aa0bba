package watch

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// A server whose storage was restored from a backup has lower resourceVersions than before. On a watch from a version
// that it has not reached yet it sends nothing, not even a bookmark or an error, and changes in the meantime are lost
// (kubernetes/kubernetes#107457). A connection that died on the far side of a proxy looks the same.
const (
	// silentAfter is how long a kind of object is silent before the server is asked, if it sends bookmarks, once a minute.
	silentAfter = 90 * time.Second
	// quietWatch is how much longer a watch may be silent without bookmarks; client-go begins another one meanwhile. A
	// server whose etcd reports its progress every ten minutes, etcd's default, may also send no bookmarks for that long.
	quietWatch = 10 * time.Minute
	// askPause is the first pause between two questions while the silence lasts, maxAskPause the longest. Pauses double.
	askPause    = 3 * time.Minute
	maxAskPause = time.Hour
	// askTimeout is how long to wait for an answer.
	askTimeout = 30 * time.Second
)

// silence asks a server that sends nothing about a kind of object for its current version, and makes the reflector
// begin the watch again, or list everything anew. The reflector's goroutine uses it, and the one that calls run.
type silence struct {
	mu        sync.Mutex
	version   string             // the last that the server sent; "": nothing is to be expected
	at        time.Time          // when it sent that
	bookmarks bool               // it sends them
	watch     apiwatch.Interface // the latest, unless it is still listing
	list      apiwatch.Interface // the list that is being streamed, and becomes the watch
	asked     time.Time          // when the last question since then was answered; zero: none
	pause     time.Duration      // until the next one
	anew      bool               // the next list is without a version
	logged    bool               // this silence, when it caused a list
}

// begun records a watch. streams: it belongs to a streamed list, which silence leaves alone.
func (s *silence) begun(w apiwatch.Interface, streams bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if streams {
		s.watch, s.list = nil, w
	} else {
		s.watch, s.list = w, nil
	}
}

// heard records what a watch sent.
func (s *silence) heard(version string, bookmark bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.at, s.bookmarks = version, time.Now(), s.bookmarks || bookmark
	s.asked, s.pause, s.logged = time.Time{}, 0, false
}

// listed records a complete list, and reports whether a silence caused it. Such a list does not end the silence: it
// says nothing about the next watch.
func (s *silence) listed(version string, streamed bool) (relist bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.at, s.bookmarks = version, time.Now(), s.bookmarks || streamed
	if s.list != nil {
		s.watch, s.list = s.list, nil
	}
	if s.anew {
		s.anew, s.asked = false, s.at
		return true
	}
	s.asked, s.pause, s.logged = time.Time{}, 0, false
	return false
}

// reportSilent tells a handler that has the method WatchSilent that a kind was listed because of a silence.
func reportSilent(h Handler, k kind) {
	if h, ok := h.(interface{ WatchSilent(metav1.Object) }); ok {
		h.WatchSilent(newObject(k))
	}
}

// listsAnew reports whether the next list is to be without a version.
func (s *silence) listsAnew() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anew
}

// run asks the server whenever it has been silent for too long, until ctx ends.
func (s *silence) run(ctx context.Context, list cache.ListWithContextFunc) {
	clk := contextClock{ctx: ctx}
	for ctx.Err() == nil {
		// Nodes ask at different times, although all may have heard the server for the last time at the same moment.
		for late := rand.Float64() / 3; ctx.Err() == nil; {
			wait := s.wait(late)
			if wait <= 0 {
				break
			}
			<-clk.After(min(wait, silentAfter)) // meanwhile the server may send something, and be silent again
		}
		if ctx.Err() == nil {
			s.ask(ctx, list)
		}
	}
}

// wait returns how long to wait before the server is asked: the pause, extended by the fraction late of it.
func (s *silence) wait(late float64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, pause := s.at, silentAfter
	switch {
	case s.version == "":
		return silentAfter
	case !s.asked.IsZero():
		since, pause = s.asked, s.pause
	case !s.bookmarks:
		pause += quietWatch
	}
	return pause + time.Duration(late*float64(pause)) - time.Since(since)
}

// ask asks the server for its version, and acts on the answer.
func (s *silence) ask(ctx context.Context, list cache.ListWithContextFunc) {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	current, err := currentVersion(ctx, list)
	s.mu.Lock()
	if s.at != at {
		s.mu.Unlock()
		return // the server has sent something meanwhile
	}
	s.asked = time.Now()
	s.pause = min(max(2*s.pause, askPause), maxAskPause)
	w, tell := s.watch, false
	switch {
	case err != nil || current == "":
		w, s.pause = nil, askPause // it may have been restored by the time it answers
	case current == s.version:
		w = nil // there is nothing newer
	case !isNewer(current, s.version), s.bookmarks && time.Since(at) > silentAfter+quietWatch:
		s.anew, s.logged, tell = true, true, !s.logged
	}
	known := s.version
	s.mu.Unlock()
	if tell {
		klog.FromContext(ctx).Error(nil, "The API server is silent; listing anew, without a version", "since", at,
			"heard", known, "current", current)
	}
	if w != nil {
		w.Stop()
	}
}

// newListAnewError makes a reflector list: a server answers with it if it no longer has the changes that a watch asks
// for.
func newListAnewError() error {
	return apierrors.NewResourceExpired("nothing has been heard of the watch")
}

// endable is a watch that ends without an error when it is stopped, so that a reflector begins another one where it
// ended. Watches of client-go sometimes end with an error, after which the reflector lists.
type endable struct {
	apiwatch.Interface
	events chan apiwatch.Event
	end    func() // closes ended
	ended  chan struct{}
}

func newEndable(w apiwatch.Interface) *endable {
	e := &endable{Interface: w, events: make(chan apiwatch.Event), ended: make(chan struct{})}
	e.end = sync.OnceFunc(func() { close(e.ended) })
	go e.pass()
	return e
}

// pass passes events on until the watch ends.
func (e *endable) pass() {
	defer close(e.events)
	for {
		select {
		case event, ok := <-e.Interface.ResultChan():
			if !ok {
				return
			}
			select {
			case e.events <- event:
			case <-e.ended:
				return
			}
		case <-e.ended:
			return
		}
	}
}

// ResultChan implements [apiwatch.Interface].
func (e *endable) ResultChan() <-chan apiwatch.Event { return e.events }

// Stop implements [apiwatch.Interface].
func (e *endable) Stop() {
	e.end()
	e.Interface.Stop()
}

// currentVersion asks the server for its version. A request without a version is never answered by a replica that lags
// behind.
func currentVersion(ctx context.Context, list cache.ListWithContextFunc) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	page, err := list(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	l, err := meta.ListAccessor(page)
	if err != nil {
		return "", err
	}
	return l.GetResourceVersion(), nil
}

// isNewer reports whether a version is known to be newer than another one.
func isNewer(version, than string) bool {
	a, err := strconv.ParseUint(version, 10, 64)
	b, thanErr := strconv.ParseUint(than, 10, 64)
	return err == nil && thanErr == nil && a > b
}
