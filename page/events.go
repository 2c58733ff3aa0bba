package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// heartbeat is the maximum time between two messages. They also keep the relative times on the page up to date.
	heartbeat = 10 * time.Second

	eventStream = "text/event-stream"
)

// serveEvents sends changes to a browser until it disconnects. Each message is the difference from the previous one,
// computed when it can be sent: however slow a browser is, there is never more than one message in flight, and nothing
// is queued.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // there is nothing to follow
		w.Header().Set("Content-Type", eventStream)
		return
	}
	if !p.enter() {
		http.Error(w, fmt.Sprintf("%d browsers follow this page already", p.opts.maxBrowsers),
			http.StatusServiceUnavailable)
		return
	}
	defer p.leave()
	w.Header().Set("Content-Type", eventStream)
	out := http.NewResponseController(w)
	timer := time.NewTimer(0)
	defer timer.Stop()
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
		timer.Reset(p.opts.minInterval)
		select {
		case <-r.Context().Done():
			return
		case <-timer.C:
		}
		timer.Reset(heartbeat)
		select {
		case <-r.Context().Done():
			return
		case <-now.updated:
		case <-timer.C:
		}
	}
}

// enter admits a browser, if there are not too many.
func (p *Page) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.browsers >= p.opts.maxBrowsers {
		return false
	}
	p.browsers++
	return true
}

func (p *Page) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.browsers--
}
