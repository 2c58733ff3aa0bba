// Package syncrequest marks the context of a Sync that was asked for, so that a sink that skips a Sync without changes
// knows that this one must not be skipped, whatever lies between it and whoever calls Sync.
package syncrequest

import "context"

type key struct{}

// Mark returns ctx as that of a Sync that was asked for.
func Mark(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Marked reports whether ctx comes from Mark.
func Marked(ctx context.Context) bool { return ctx.Value(key{}) != nil }
