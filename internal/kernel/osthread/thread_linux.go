package osthread

import (
	"errors"
	"sync"
)

// Thread is a thread that runs functions, one at a time, until Close. A nil Thread means the caller's.
type Thread struct {
	jobs  chan func()
	ended chan struct{}
	once  sync.Once
}

// ErrEnded is returned if the thread ended while it ran a function.
var ErrEnded = errors.New("the thread has ended: did a function on it call t.FailNow or runtime.Goexit?")

// NewThread starts a thread and calls enter on it. If that fails, the thread ends.
func NewThread(enter func() error) (*Thread, error) {
	t := &Thread{jobs: make(chan func()), ended: make(chan struct{})}
	entered := make(chan error)
	Go(func() {
		defer close(t.ended)
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for job := range t.jobs {
			job()
		}
	})
	return t, <-entered
}

// Do runs f on the thread and returns its error.
func (t *Thread) Do(f func() error) error {
	if t == nil {
		return f()
	}
	done := make(chan error, 1)
	select {
	case t.jobs <- func() { done <- f() }:
	case <-t.ended:
		return ErrEnded
	}
	select {
	case err := <-done:
		return err
	case <-t.ended:
		return ErrEnded
	}
}

// Close ends the thread, and waits for its end. Do must not be called afterwards.
func (t *Thread) Close() {
	if t == nil {
		return
	}
	t.once.Do(func() { close(t.jobs) })
	<-t.ended
}
