// Package calls is shared by the kernel models of tests: it serializes and records calls, and makes them fail when a
// test requests it.
package calls

import (
	"context"
	"sync"
	"sync/atomic"
)

// Log records the calls of a model that embeds it. The zero value is ready to use. It is locked during a call, and
// while a test reads or changes the model.
type Log struct {
	sync.Mutex

	fail, failRead atomic.Pointer[func(call string) error]

	calls Calls
}

// Calls counts calls.
type Calls struct {
	// Reads are the names of reading calls. Writes are the texts of modifying calls.
	Reads, Writes []string
}

// SetFail sets a function that is called before each modifying call, with the call's text; nil for none. If it returns
// an error, the call returns that and changes nothing. It is called for one call at a time, may call SetFail itself,
// and must not use the model.
func (l *Log) SetFail(fail func(call string) error) { l.fail.Store(&fail) }

// Fail makes every modifying call fail with err, until Fail(nil). It replaces what SetFail has set.
func (l *Log) Fail(err error) { l.SetFail(func(string) error { return err }) }

// SetFailRead is the same for reading calls, with the method's name.
func (l *Log) SetFailRead(fail func(call string) error) { l.failRead.Store(&fail) }

// TakeCalls returns the calls since the last TakeCalls.
func (l *Log) TakeCalls() Calls {
	l.Lock()
	defer l.Unlock()
	c := l.calls
	l.calls = Calls{}
	return c
}

// Read runs a reading call.
func Read[T any](ctx context.Context, l *Log, method string, get func() (T, error)) (T, error) {
	l.Lock()
	defer l.Unlock()
	l.calls.Reads = append(l.calls.Reads, method)
	if err := check(ctx, l.failRead.Load(), method); err != nil {
		return *new(T), err
	}
	return get()
}

// Write runs a modifying call.
func (l *Log) Write(ctx context.Context, call string, change func() error) error {
	l.Lock()
	defer l.Unlock()
	l.calls.Writes = append(l.calls.Writes, call)
	if err := check(ctx, l.fail.Load(), call); err != nil {
		return err
	}
	return change()
}

func check(ctx context.Context, fail *func(string) error, call string) error {
	if fail == nil || *fail == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return (*fail)(call)
}
