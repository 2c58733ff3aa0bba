// Package testdial lets tests give a Feed connections in memory instead of those to its targets: synctest does not
// support real ones.
package testdial

import (
	"context"
	"net"
)

// Func opens a connection to a target.
type Func func(ctx context.Context, target string) (net.Conn, error)

type key struct{}

// With returns a context with which a Feed connects by a function.
func With(ctx context.Context, dial Func) context.Context { return context.WithValue(ctx, key{}, dial) }

// From returns the function of a context, or nil.
func From(ctx context.Context) Func {
	dial, _ := ctx.Value(key{}).(Func)
	return dial
}
