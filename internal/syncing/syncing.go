// Package syncing is shared by the callers of Sync and the sinks in between: the pause after a Sync, whether a Sync was
// requested, and whether it failed like the previous one.
package syncing

import (
	"context"
	"reflect"
	"time"
)

// share is the pause after work as a multiple of its duration, so that work takes a tenth of the time.
const share = 9

// Pace limits the pauses.
type Pace struct {
	// Floor is the shortest pause. It limits how often cheap work is done.
	Floor time.Duration
	// Most is the longest pause. Work that takes more than a ninth of it takes more than a tenth of the time.
	Most time.Duration
}

// After returns the pause after work of this duration.
func (p Pace) After(cost time.Duration) time.Duration {
	if cost > p.Most/share {
		return p.Most
	}
	return max(share*cost, p.Floor)
}

type requestKey struct{}

// MarkRequested returns the context for a requested Sync.
func MarkRequested(ctx context.Context) context.Context {
	return context.WithValue(ctx, requestKey{}, true)
}

// IsRequested reports whether ctx comes from MarkRequested.
func IsRequested(ctx context.Context) bool { return ctx.Value(requestKey{}) != nil }

// SameError reports whether two errors are the same pointer, or both nil; it is false for errors that are not pointers.
// Errors are immutable once returned, so the same pointer means the same error.
func SameError(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	t := reflect.TypeOf(a)
	return t.Kind() == reflect.Pointer && t == reflect.TypeOf(b) && a == b //nolint:errorlint // the value itself
}
