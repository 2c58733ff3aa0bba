package apiserver

import (
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

// stream is a watch under way.
type stream struct {
	k        kind
	r        Request
	selected func(object) bool
	after    int64 // the version of the last event that was looked at
	encoder  *restwatch.Encoder
	flush    func() error
	left     int // events until the fault ends it, if not 0
	ended    bool
}

// watch answers with events until the request, its time or the connection ends. An error that the client can be told is
// an event.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q Request, k kind, f Fault) error {
	selected, err := q.selection(k)
	if err == nil && q.StreamsList() && q.Options.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
		err = apierrors.NewBadRequest("sendInitialEvents requires resourceVersionMatch NotOlderThan")
	}
	info, acceptErr := serializer(r)
	if err == nil {
		err = acceptErr
	}
	if err == nil && info.StreamSerializer == nil {
		err = apierrors.NewBadRequest(info.MediaType + " cannot be streamed")
	}
	if err != nil {
		return writeError(w, r, err)
	}
	contentType := info.MediaType
	if contentType != runtime.ContentTypeJSON {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if err := flush(); err != nil {
		return err
	}
	var timeout <-chan time.Time // never, unless the client says so
	if t := q.Options.TimeoutSeconds; t != nil && *t > 0 {
		timer := time.NewTimer(time.Duration(*t) * time.Second)
		defer timer.Stop()
		timeout = timer.C
	}
	st := &stream{k: k, r: q, selected: selected, flush: flush, left: f.EndAfter, encoder: restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.NewFrameWriter(w), info.StreamSerializer.Serializer),
		info.Serializer)}
	cut, err := s.begin(st, f)
	defer s.end(st)
	for err == nil && !st.ended {
		s.mu.Lock()
		if cut != s.cut { // what comes after the cut is not for this watch
			s.mu.Unlock()
			return nil
		}
		events, changed := s.history[s.afterLocked(st.after):], s.changed
		if len(events) > 0 {
			s.sent[st] = events[len(events)-1].version
		}
		s.mu.Unlock()
		for i := 0; i < len(events) && err == nil && !st.ended; i++ {
			err = st.pass(events[i])
		}
		if err != nil || st.ended {
			break
		}
		select {
		case <-changed:
		case <-cut:
			return nil
		case <-timeout:
			return st.bookmark(false)
		case <-r.Context().Done():
			err = r.Context().Err()
		}
	}
	return err
}

// begin sends what comes before the changes: the objects that there are, if the client wants them, or an error. It
// returns what is closed when the watch is cut.
func (s *Server) begin(st *stream, f Fault) (cut chan struct{}, err error) {
	o := st.r.Options
	var objects []object
	s.mu.Lock()
	cut = s.cut
	withObjects := o.ResourceVersion == "" || o.ResourceVersion == "0" || st.r.StreamsList()
	if withObjects {
		if st.after, err = s.versionLocked(o, f); err == nil {
			objects = selectFrom(s.atLocked(st.r.Resource, st.after), st.selected)
		}
	} else if st.after, err = parseVersion(o.ResourceVersion); err == nil {
		err = s.expiredLocked(st.after)
	}
	s.sent[st] = st.after
	s.mu.Unlock()
	if err != nil {
		st.ended = true
		return cut, st.send(apiwatch.Error, statusOf(err))
	}
	for _, o := range objects {
		if err := st.send(apiwatch.Added, o); err != nil || st.ended {
			return cut, err
		}
	}
	if st.r.StreamsList() {
		err = st.bookmark(true)
	}
	return cut, err
}

// end forgets a watch.
func (s *Server) end(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sent, st)
}

// pass sends what an event is for the client.
func (st *stream) pass(e event) error {
	st.after = e.version
	if e.old == nil && e.now == nil {
		return st.bookmark(false)
	}
	if e.resource != st.r.Resource {
		return nil
	}
	was, is := st.selected(e.old), st.selected(e.now)
	switch {
	case was && is:
		return st.send(apiwatch.Modified, e.now)
	case is:
		return st.send(apiwatch.Added, e.now)
	case was:
		last := e.old.DeepCopyObject().(object)
		last.SetResourceVersion(strconv.FormatInt(e.version, 10))
		return st.send(apiwatch.Deleted, last)
	}
	return nil
}

// bookmark sends a bookmark if the client wants them. endOfList marks the end of the objects that there were.
func (st *stream) bookmark(endOfList bool) error {
	if !st.r.Options.AllowWatchBookmarks {
		return nil
	}
	o := st.k.empty()
	o.SetResourceVersion(strconv.FormatInt(st.after, 10))
	if endOfList {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return st.send(apiwatch.Bookmark, o)
}

func (st *stream) send(eventType apiwatch.EventType, o runtime.Object) error {
	if err := st.encoder.Encode(&apiwatch.Event{Type: eventType, Object: o}); err != nil {
		return err
	}
	if st.left--; st.left == 0 {
		st.ended = true
	}
	return st.flush()
}
