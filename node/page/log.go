package page

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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

// add adds a value. It replaces the oldest if there are more than most.
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
	maxSyncs      = 60  // remembered
	maxPerSync    = 50  // of one Sync that are reported one by one
	maxTold       = 3   // pods that an event names
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

// changeText describes what changed in a service. A pod with several ports is several endpoints, and an endpoint that
// drains stays for a while: what a reader asks is which pods get new connections.
func changeText(c *sink.Change) string {
	var parts []string
	if c.ServiceChanged() {
		parts = append(parts, "the service itself changed")
	}
	type pod struct {
		addr  netip.Addr
		ports string
	}
	news := [...]struct {
		text string
		pods []pod // at most maxTold
		more map[netip.Addr]bool
	}{{text: "now used: "}, {text: "no longer used: "}, {text: "changed: "}}
	for before, after := range c.Endpoints() {
		n, e := &news[2], cmp.Or(after, before)
		switch was, is := before != nil && before.Sets != 0, after != nil && after.Sets != 0; {
		case is && !was:
			n = &news[0]
		case was && !is:
			n = &news[1]
		}
		addr, port := e.Target.Addr(), strconv.Itoa(int(e.Target.Port()))+"/"+e.Port.Protocol.String()
		switch i := slices.IndexFunc(n.pods, func(p pod) bool { return p.addr == addr }); {
		case i >= 0:
			n.pods[i].ports += ", " + port
		case len(n.pods) < maxTold:
			n.pods = append(n.pods, pod{addr, port})
		case n.more == nil:
			n.more = map[netip.Addr]bool{addr: true}
		default:
			n.more[addr] = true
		}
	}
	for _, n := range news {
		for i, p := range n.pods {
			if i > 0 {
				n.text += ", "
			}
			n.text += p.addr.String() + " (" + p.ports + ")"
		}
		if len(n.more) > 0 {
			n.text += fmt.Sprintf(", and %d more", len(n.more))
		}
		if len(n.pods) > 0 {
			parts = append(parts, n.text)
		}
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
