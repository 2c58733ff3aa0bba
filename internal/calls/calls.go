// Package calls is what models of kernels for tests have in common: calls are let through one at a time, recorded, and
// fail when a test says so.
package calls

import (
	"context"
	"sync"
)

// Log records the calls of a model that embeds it. Its zero value is ready for use; set the exported fields before the
// first call. It is locked during a call, and while a test reads or changes the model.
type Log struct {
	sync.Mutex

	// Fail, if set, is called before each modifying call, with its text. If it returns an error, the call returns that
	// and changes nothing. FailRead is the same for reading calls, with the name of the method.
	Fail, FailRead func(call string) error

	calls Calls
}

// Calls counts calls.
type Calls struct {
	// Reads has the name of every call that only reads, Writes a text for every one that changes something.
	Reads, Writes []string
}

// TakeCalls returns the calls since the last time.
func (l *Log) TakeCalls() Calls {
	l.Lock()
	defer l.Unlock()
	c := l.calls
	l.calls = Calls{}
	return c
}

// Read makes a call that only reads.
func Read[T any](ctx context.Context, l *Log, method string, get func() (T, error)) (T, error) {
	l.Lock()
	defer l.Unlock()
	l.calls.Reads = append(l.calls.Reads, method)
	if err := check(ctx, l.FailRead, method); err != nil {
		return *new(T), err
	}
	return get()
}

// Write makes a call that changes something.
func (l *Log) Write(ctx context.Context, call string, change func() error) error {
	l.Lock()
	defer l.Unlock()
	l.calls.Writes = append(l.calls.Writes, call)
	if err := check(ctx, l.Fail, call); err != nil {
		return err
	}
	return change()
}

func check(ctx context.Context, fail func(string) error, call string) error {
	if fail == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return fail(call)
}
