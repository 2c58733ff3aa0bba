package kubeproxy

import (
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Health tells how a running proxy is doing, by IP family. The zero value is ready to be given to Run, and its methods may
// be called at any time from any goroutine.
type Health struct {
	mu     sync.Mutex
	v4, v6 familyState
}

// familyState keeps the two ages apart that FamilyHealth.OldestPending is made of.
type familyState struct {
	FamilyHealth
	queuedSince   time.Time // the oldest change that no Sync has seen
	inFlightSince time.Time // the oldest change that a Sync has seen, but not put in force
}

// FamilyHealth is the health of one family. A zero time means never, or nothing.
type FamilyHealth struct {
	// LastQueued is when the latest change came that may concern the family.
	LastQueued time.Time
	// OldestPending is when the oldest change came that is not in force yet. A proxy whose oldest pending change is
	// too old (kube-proxy: more than twice its sync period, S39a) is unhealthy.
	OldestPending time.Time
	// LastApplied is when a Sync last ended that put the family in force.
	LastApplied time.Time
}

// Healthy tells whether no change has waited for longer than limit at the time now.
func (h FamilyHealth) Healthy(now time.Time, limit time.Duration) bool {
	return h.OldestPending.IsZero() || now.Sub(h.OldestPending) <= limit
}

// Family returns the health of a family.
func (h *Health) Family(f model.Family) FamilyHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.family(f).FamilyHealth
}

func (h *Health) family(f model.Family) *familyState {
	if f == model.IPv6 {
		return &h.v6
	}
	return &h.v4
}

// update changes the state of a family under the lock.
func (h *Health) update(f model.Family, change func(*familyState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.family(f)
	change(s)
	s.OldestPending = s.inFlightSince
	if s.OldestPending.IsZero() {
		s.OldestPending = s.queuedSince
	}
}

// queued notes that a change came.
func (h *Health) queued(f model.Family, now time.Time) {
	h.update(f, func(s *familyState) {
		s.LastQueued = now
		if s.queuedSince.IsZero() {
			s.queuedSince = now
		}
	})
}

// flushed notes that all changes so far are in the hands of the sink.
func (h *Health) flushed(f model.Family) {
	h.update(f, func(s *familyState) {
		if s.inFlightSince.IsZero() {
			s.inFlightSince = s.queuedSince
		}
		s.queuedSince = time.Time{}
	})
}

// settled notes that what was flushed is in force: by a Sync that ended at the time given or, if that is zero, because
// there was nothing to do.
func (h *Health) settled(f model.Family, applied time.Time) {
	h.update(f, func(s *familyState) {
		s.inFlightSince = time.Time{}
		if !applied.IsZero() {
			s.LastApplied = applied
		}
	})
}
