package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// heartbeat is the maximum time between two messages. They also keep the relative times on the page up to date.
const heartbeat = 10 * time.Second

// serveEvents sends changes to a browser until it disconnects. Each message is the difference from the previous one,
// computed when it can be sent: however slow a browser is, there is never more than one message in flight, and nothing
// is queued.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead { // there is nothing to follow
		return
	}
	out := http.NewResponseController(w)
	var before *view
	for {
		now := p.view()
		text, err := json.Marshal(p.message(before, &now))
		if err != nil {
			return // cannot happen: all of it can be encoded
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		before = &now
		select {
		case <-r.Context().Done():
			return
		case <-time.After(p.opts.minInterval):
		}
		select {
		case <-r.Context().Done():
			return
		case <-now.updated:
		case <-time.After(heartbeat):
		}
	}
}
