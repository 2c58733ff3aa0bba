package brain

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// ClientStatus is the status of a client of a [Server].
type ClientStatus struct {
	// Node is the name of the client's node, and Zone its topology zone, "" if it has none or the Node object is not
	// known.
	Node string `json:"node"`
	Zone string `json:"zone,omitempty"`
	// WithoutZone says that it is served like a node without a zone although a topology hint names its zone, because of
	// the limits of classes: see Options.MaxClasses.
	WithoutZone bool `json:"withoutZone,omitempty"`
	// Since is when it connected.
	Since time.Time `json:"since"`
	// Revision is the newest that it has acknowledged, 0 if none.
	Revision uint64 `json:"revision"`
	// BehindSince is the time since which it has not acknowledged the newest revision; zero: it is up to date.
	BehindSince time.Time `json:"behindSince,omitzero"`
	// Error is the apply error that it reported, "" if none.
	Error string `json:"error,omitempty"`
}

// Clients returns the clients that are connected, the worst first: those with errors, then by how long they have been
// behind.
func (s *Server) Clients() []ClientStatus {
	s.mu.Lock()
	var all []*client
	for _, of := range s.byNode {
		for c := range of {
			all = append(all, c)
		}
	}
	zones, without := make(map[*client]string, len(all)), map[*client]bool{}
	for _, c := range all {
		zones[c], without[c] = c.zone, s.isWithoutZone(c)
	}
	s.mu.Unlock()
	var out []ClientStatus
	for _, c := range all {
		c.mu.Lock()
		out = append(out, ClientStatus{Node: c.node, Zone: zones[c], WithoutZone: without[c], Since: c.since,
			Revision: c.has.revision, BehindSince: c.behind, Error: c.applyErr})
		c.mu.Unlock()
	}
	rank := func(c ClientStatus) int {
		switch {
		case c.Error != "":
			return 0
		case !c.BehindSince.IsZero():
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b ClientStatus) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.BehindSince.Compare(b.BehindSince), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// StatusHandler returns the handler of the status as JSON: instance, revision, synced, the numbers of clients, of those
// that are behind and of those with errors, and the worst clients: 20 of them, or ?worst=N. With ?node=NAME all clients
// of that node are listed instead, and nothing else changes.
func (s *Server) StatusHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		worst := 20
		if text := r.URL.Query().Get("worst"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				http.Error(w, "worst is not a number", http.StatusBadRequest)
				return
			}
			worst = n
		}
		clients := s.Clients()
		listed := clients[:min(worst, len(clients))]
		if node := r.URL.Query().Get("node"); node != "" {
			listed = []ClientStatus{}
			for _, c := range clients {
				if c.Node == node {
					listed = append(listed, c)
				}
			}
		}
		s.mu.Lock()
		answer := struct {
			Instance string         `json:"instance"`
			Revision uint64         `json:"revision"`
			Synced   bool           `json:"synced"`
			Clients  int            `json:"clients"`
			Behind   int            `json:"behind"`
			Errors   int            `json:"errors"`
			Worst    []ClientStatus `json:"worst"`
		}{Instance: s.instance, Revision: s.revision, Synced: s.synced, Clients: len(clients),
			Worst: listed}
		s.mu.Unlock()
		for _, c := range clients {
			if !c.BehindSince.IsZero() {
				answer.Behind++
			}
			if c.Error != "" {
				answer.Errors++
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // an error means that the client has gone
	})
}
