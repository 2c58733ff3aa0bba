package watch

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// streamMost is how long a streamed list of [ListFallback] may take in all. Unlike [Clientset] it cannot tell the list
// from the changes that follow it, which in a busy cluster never stop.
const streamMost = 5 * time.Minute

// ListFallback is for informers that a program makes itself, behind a tunnel or proxy that drops the bookmark that ends
// a streamed list: without it they wait forever. It wraps the transport of their client, so it works for informers of
// all kinds and of all factories:
//
//	config.Wrap(watch.ListFallback) // config is the *rest.Config of the informers' client
//
// A streamed list that has sent nothing for 30 seconds, that takes longer than five minutes, or that broke off three
// times in a row, is given up. That is logged, and client-go lists without streaming, then and for every later list of
// the same resource and selectors. [Clientset] does this by itself, and does not need it.
func ListFallback(next http.RoundTripper) http.RoundTripper {
	return newListFallback(next, afterFunc)
}

func newListFallback(next http.RoundTripper, after func(time.Duration, func()) timer) *listFallback {
	return &listFallback{next: next, after: after, broken: map[string]int{}}
}

type listFallback struct {
	next  http.RoundTripper
	after func(time.Duration, func()) timer // afterFunc, but for tests

	mu     sync.Mutex
	broken map[string]int // streamed lists in a row that did not end, by what they list
}

// WrappedRoundTripper is for client-go, which looks for the connections' transport.
func (f *listFallback) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper.
func (f *listFallback) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.RawQuery, "sendInitialEvents=true") {
		return f.next.RoundTrip(r)
	}
	query := r.URL.Query()
	what := strings.Join([]string{r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")}, "\n")
	if f.lost(what) {
		return nil, errIncomplete
	}
	answer, err := f.next.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	l := &streamedList{ReadCloser: answer.Body, ctx: r.Context(), path: r.URL.Path, what: what, fallback: f,
		until: time.Now().Add(streamMost)}
	l.timer = f.after(streamQuiet, l.giveUp)
	answer.Body = l
	return answer, nil
}

func (f *listFallback) lost(what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken[what] >= maxIncomplete
}

// note records how a streamed list ended: with how many to add to those that did not, or 0 for one that did.
func (f *listFallback) note(l *streamedList, broken int) {
	f.mu.Lock()
	before := f.broken[l.what]
	now := before + broken
	if broken == 0 {
		delete(f.broken, l.what)
	} else {
		f.broken[l.what] = now
	}
	f.mu.Unlock()
	if before < maxIncomplete && now >= maxIncomplete {
		logIncomplete(klog.FromContext(l.ctx), "path", l.path)
	}
}

// streamedList is the body of a watch that begins with a list.
type streamedList struct {
	io.ReadCloser
	ctx        context.Context // of the request
	path, what string
	fallback   *listFallback
	until      time.Time
	timer      timer       // gives the list up
	over       atomic.Bool // the list has ended; what follows are changes
	givenUp    atomic.Bool
	tail       []byte // of what was read, in which the key may have begun
}

// Read looks for the bookmark, in whatever encoding, and knows it by the annotation's key. An object that contains the
// key too is taken for it: then the list is not given up, as without a fallback.
func (l *streamedList) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	switch {
	case l.over.Load():
	case l.hasKey(p[:n]):
		l.end(0)
	case err == nil:
		l.timer.Reset(min(streamQuiet, time.Until(l.until)))
	case l.ctx.Err() == nil:
		l.end(1)
	}
	if err != nil && l.givenUp.Load() {
		err = io.EOF // client-go tries again at once, and learns that it has to list
	}
	return n, err
}

func (l *streamedList) hasKey(p []byte) bool {
	key := []byte(metav1.InitialEventsAnnotationKey)
	border := append(l.tail, p[:min(len(p), len(key)-1)]...)
	found := bytes.Contains(border, key) || bytes.Contains(p, key)
	if len(p) >= len(key) {
		border = p
	}
	l.tail = append(l.tail[:0], border[max(0, len(border)-len(key)+1):]...)
	return found
}

// end is called for the first of these: the list is complete, broken off or given up.
func (l *streamedList) end(broken int) {
	if !l.over.Swap(true) {
		l.timer.Stop()
		l.fallback.note(l, broken)
	}
}

func (l *streamedList) giveUp() {
	if l.over.Swap(true) {
		return
	}
	l.fallback.note(l, maxIncomplete)
	l.givenUp.Store(true)
	_ = l.ReadCloser.Close()
}

// Close implements io.Closer. A list that the client does not want any longer is no broken one.
func (l *streamedList) Close() error {
	if !l.over.Swap(true) {
		l.timer.Stop()
	}
	return l.ReadCloser.Close()
}
