package brain

import (
	"context"
	"maps"
	"sync"
	"time"
)

// classTurns limits the work that each principal causes by its classes, whatever zones and options it names: one class
// is computed at a time, and then the principal has to pause. It uses about a tenth of a core for that, more only if a
// class takes so long that the pause has its maximum length. Others wait for the processor meanwhile, and some of the
// work is done with the Server's work held. The zero value is ready to use, by any goroutine.
type classTurns struct {
	mu sync.Mutex
	of map[principal]*classTurn
}

// classTurn is the slot of one principal.
type classTurn struct {
	busy    chan struct{} // holds one element while a class is computed
	clients int           // that hold the slot, or wait for it; guarded by the mutex of classTurns
	rests   time.Time     // the end of the pause; guarded by busy
}

const (
	// classRest is the length of the pause, as a multiple of the time that the last class took.
	classRest = 9
	// maxClassRest is the longest pause. It is shorter than the time that clients wait for their first message.
	maxClassRest = 5 * time.Second
)

// take waits for the principal's slot and the end of its pause. The caller calls done afterwards. It fails only if ctx
// ends.
func (t *classTurns) take(ctx context.Context, p principal) (done func(), err error) {
	turn := t.join(p)
	select {
	case turn.busy <- struct{}{}:
	case <-ctx.Done():
		t.leave(turn)
		return nil, ctx.Err()
	}
	if wait := time.Until(turn.rests); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			<-turn.busy
			t.leave(turn)
			return nil, ctx.Err()
		}
	}
	begin := time.Now()
	return func() {
		now := time.Now()
		turn.rests = now.Add(min(classRest*now.Sub(begin), maxClassRest))
		<-turn.busy
		t.leave(turn)
	}, nil
}

// join returns the slot of a principal, and drops unused ones whose pause is over.
func (t *classTurns) join(p principal) *classTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn := t.of[p]
	if turn == nil {
		now := time.Now()
		maps.DeleteFunc(t.of, func(_ principal, other *classTurn) bool {
			return other.clients == 0 && !other.rests.After(now)
		})
		if t.of == nil {
			t.of = map[principal]*classTurn{}
		}
		turn = &classTurn{busy: make(chan struct{}, 1)}
		t.of[p] = turn
	}
	turn.clients++
	return turn
}

func (t *classTurns) leave(turn *classTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn.clients--
}
