package brain

import (
	"context"
	"maps"
	"sync"
	"time"
)

// classSlots limits the work that each principal causes by its classes, whatever zones and options it names: one class
// is computed at a time, and then the principal has to pause. It uses about a tenth of a core for that, more only if a
// class takes so long that the pause has its maximum length. Others wait for the processor meanwhile, and some of the
// work is done with the Server's work held. The zero value is ready to use, by any goroutine.
type classSlots struct {
	mu    sync.Mutex
	of    map[principal]*classSlot
	swept time.Time // when unused slots were last dropped
}

// classSlot is the slot of one principal.
type classSlot struct {
	busy        chan struct{} // holds one element while a class is computed
	clients     int           // that hold the slot, or wait for it; guarded by the mutex of classSlots
	pausedUntil time.Time     // the end of the pause; guarded by busy
}

const (
	// classPause is the length of the pause, as a multiple of the time that the last class took.
	classPause = 9
	// maxClassPause is the longest pause. It is shorter than the time that clients wait for their first message.
	maxClassPause = 5 * time.Second
)

// take waits for the principal's slot and the end of its pause. The caller calls done afterwards. It fails only if ctx
// ends.
func (s *classSlots) take(ctx context.Context, p principal) (done func(), err error) {
	slot := s.join(p)
	select {
	case slot.busy <- struct{}{}:
	case <-ctx.Done():
		s.leave(slot)
		return nil, ctx.Err()
	}
	if wait := time.Until(slot.pausedUntil); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			<-slot.busy
			s.leave(slot)
			return nil, ctx.Err()
		}
	}
	begin := time.Now()
	return func() {
		now := time.Now()
		slot.pausedUntil = now.Add(min(classPause*now.Sub(begin), maxClassPause))
		<-slot.busy
		s.leave(slot)
	}, nil
}

// join returns the slot of a principal, and now and then drops unused ones whose pause is over: each principal that
// comes would otherwise look at all others.
func (s *classSlots) join(p principal) *classSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.swept) >= maxClassPause {
		s.swept = now
		maps.DeleteFunc(s.of, func(_ principal, other *classSlot) bool {
			return other.clients == 0 && !other.pausedUntil.After(now)
		})
	}
	slot := s.of[p]
	if slot == nil {
		if s.of == nil {
			s.of = map[principal]*classSlot{}
		}
		slot = &classSlot{busy: make(chan struct{}, 1)}
		s.of[p] = slot
	}
	slot.clients++
	return slot
}

func (s *classSlots) leave(slot *classSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.clients--
}
