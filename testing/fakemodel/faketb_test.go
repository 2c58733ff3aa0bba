package fakemodel

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// fakeTB stands in for a test that is meant to fail.
type fakeTB struct {
	testing.TB
	messages []string
}

type failed struct{}

// failure runs f and returns how it failed, "" if it did not.
func failure(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	tb := &fakeTB{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != (failed{}) {
				panic(r)
			}
		}()
		f(tb)
	}()
	return strings.Join(tb.messages, "\n")
}

func (t *fakeTB) Helper() {}

func (t *fakeTB) Context() context.Context { return t.TB.Context() }

func (t *fakeTB) Errorf(format string, args ...any) {
	t.messages = append(t.messages, fmt.Sprintf(format, args...))
}

func (t *fakeTB) FailNow() { panic(failed{}) }

func (t *fakeTB) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	t.FailNow()
}
