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

// stream is an active watch.
type stream struct {
	k        kind
	r        Request
	selected func(object) bool
	after    int64 // version of the last event examined
	as       representation
	encoder  *restwatch.Encoder
	left     int // number of events until the fault ends it; 0: no limit
	ended    bool
}

// watch sends events until the request, its timeout or the connection ends. Errors are sent as events if possible.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q Request, k kind, f Fault) error {
	selected, err := q.selection(k)
	if err == nil && q.StreamsList() && q.Options.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
		err = apierrors.NewBadRequest("sendInitialEvents requires resourceVersionMatch NotOlderThan")
	}
	info, acceptErr := represented(r)
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
	var timeout <-chan time.Time // blocks unless the client sets a timeout
	if t := q.Options.TimeoutSeconds; t != nil && *t > 0 {
		timer := time.NewTimer(time.Duration(*t) * time.Second)
		defer timer.Stop()
		timeout = timer.C
	}
	st := &stream{k: k, r: q, selected: selected, left: f.EndAfter, as: info, encoder: restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.NewFrameWriter(w), info.StreamSerializer.Serializer),
		info.Serializer)}
	cut, err := s.begin(st, f)
	defer s.end(st)
	for err == nil && !st.ended {
		s.mu.Lock()
		if cut != s.cut { // changes after the cut are not sent
			s.mu.Unlock()
			return nil
		}
		events, changed := s.history[s.afterLocked(st.after):], s.changed
		if f.Silent {
			events, changed = nil, nil
		}
		if len(events) > 0 {
			s.sent[st] = events[len(events)-1].version
		}
		s.mu.Unlock()
		for i := 0; i < len(events) && err == nil && !st.ended; i++ {
			err = st.pass(events[i])
		}
		if err == nil {
			err = flush()
		}
		if err != nil || st.ended {
			break
		}
		select {
		case <-changed:
		case <-cut:
			return nil
		case <-timeout:
			if f.Silent {
				return nil
			}
			return st.bookmark(false)
		case <-r.Context().Done():
			err = r.Context().Err()
		}
	}
	return err
}

// begin sends the initial objects, if the client wants them, or an error. It returns the channel that Cut closes.
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
	} else if st.after, err = parseVersion(o.ResourceVersion); err == nil && (!f.Silent || st.after <= s.version) {
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
	if st.r.StreamsList() && !f.NoEndOfList {
		err = st.bookmark(true)
	}
	return cut, err
}

// end removes a watch.
func (s *Server) end(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sent, st)
}

// pass sends the event that a change causes for the client, if any.
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

// bookmark sends a bookmark if the client allows them. endOfList marks the end of the initial objects.
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

// send writes an event. It is flushed once no more events are waiting: a packet per event would be much slower.
func (st *stream) send(eventType apiwatch.EventType, o runtime.Object) error {
	if err := st.encoder.Encode(&apiwatch.Event{Type: eventType, Object: st.as.of(o)}); err != nil {
		return err
	}
	if st.left--; st.left == 0 {
		st.ended = true
	}
	return nil
}
