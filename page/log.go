package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// event is something that happened.
type event struct {
	// Number counts the events, from 1.
	Number  uint64            `json:"number"`
	At      time.Time         `json:"at"`
	Kind    eventKind         `json:"kind"`
	Service model.ServiceName `json:"service,omitzero"`
	Text    string            `json:"text"`
}

// eventKind is the kind of an event.
type eventKind string

const (
	kindListed  eventKind = "listed"  // the first Sync
	kindAdded   eventKind = "added"   // a service
	kindRemoved eventKind = "removed" // a service
	kindChange  eventKind = "change"  // of a service, or of its endpoints
	kindNode    eventKind = "node"    // the node changed
	kindError   eventKind = "error"   // a Sync failed
)

// syncPoint is a Sync in the curve of the last ones.
type syncPoint struct {
	// Number counts the Syncs, from 1.
	Number uint64    `json:"number"`
	At     time.Time `json:"at"`
	Micros int64     `json:"micros"` // that it took
	// Services is how many services changed with it.
	Services int  `json:"services"`
	Failed   bool `json:"failed,omitempty"`
}

// log holds the last events, and the last Syncs.
type log struct {
	all   ring[event]
	syncs ring[syncPoint]
}

// ring holds the last values.
type ring[T any] struct {
	added  uint64 // values in all
	values []T
}

// add adds a value, in the place of the oldest if there are more than most.
func (r *ring[T]) add(value T, most uint64) {
	if r.added++; r.added <= most {
		r.values = append(r.values, value)
	} else {
		r.values[(r.added-1)%most] = value
	}
}

// list returns the values, the oldest first.
func (r *ring[T]) list() []T {
	list, oldest := make([]T, 0, len(r.values)), r.added-uint64(len(r.values))
	for n := oldest; n < r.added; n++ {
		list = append(list, r.values[n%uint64(len(r.values))])
	}
	return list
}

const (
	maxEvents     = 200 // remembered
	maxSyncs      = 60  // likewise
	maxPerSync    = 50  // of one Sync that are told one by one
	maxTold       = 3   // endpoints that an event names
	maxErrorBytes = 2000
)

func (l *log) add(e event) {
	e.Number = l.all.added + 1
	l.all.add(e, maxEvents)
}

// events returns them, the latest first.
func (l *log) events() []event {
	list := l.all.list()
	slices.Reverse(list)
	return list
}

func (l *log) addSync(s syncPoint) {
	s.Number = l.syncs.added + 1
	l.syncs.add(s, maxSyncs)
}

func (l *log) listed(at time.Time, s *sink.Snapshot) {
	l.add(event{At: at.UTC(), Kind: kindListed,
		Text: fmt.Sprintf("%s with %s listed", count(s.NumServices(), "service"), count(s.NumEndpoints(), "endpoint"))})
}

// change records a difference between two snapshots, the n-th of a Sync.
func (l *log) change(at time.Time, c *sink.Change, n int) {
	if n > maxPerSync {
		return
	}
	e := event{At: at, Service: c.Name, Kind: kindChange}
	switch {
	case c.Old == nil:
		e.Kind, e.Text = kindAdded, fmt.Sprintf("added with %s", count(len(c.New.Endpoints), "endpoint"))
	case c.New == nil:
		e.Kind, e.Text = kindRemoved, "removed"
	default:
		e.Text = changeText(c)
	}
	l.add(e)
}

// changeText describes what changed in a service.
func changeText(c *sink.Change) string {
	var parts []string
	if c.ServiceChanged() {
		parts = append(parts, "the service itself changed")
	}
	groups := [3]struct {
		n    int
		list []string
	}{}
	for before, after := range c.Endpoints() {
		g, e := &groups[2], after
		switch {
		case before == nil:
			g = &groups[0]
		case after == nil:
			g, e = &groups[1], before
		}
		if g.n++; g.n <= maxTold {
			g.list = append(g.list, fmt.Sprintf("%v/%v", e.Target, e.Port.Protocol))
		}
	}
	for i, verb := range []string{"added", "removed", "changed"} {
		g := groups[i]
		if g.n == 0 {
			continue
		}
		text := fmt.Sprintf("%s %s: %s", count(g.n, "endpoint"), verb, strings.Join(g.list, ", "))
		if g.n > len(g.list) {
			text += " ..."
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// count returns "1 endpoint" or "3 endpoints".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shorten truncates a text that could be of any length.
func shorten(s string) string {
	if len(s) <= maxErrorBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorBytes], "") + " ..."
}
