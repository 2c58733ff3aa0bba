package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// host takes the place of the test to which the control plane usually belongs: here it belongs to the machine's
// process.
type host struct {
	testing.TB
	ctx      context.Context
	dir      string
	cleanups []func()
}

func (h *host) Helper() {}

func (h *host) Name() string { return "cluster" }

func (h *host) Context() context.Context { return h.ctx }

func (h *host) TempDir() string { return h.dir }

func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

func (h *host) Failed() bool { return false }

func (h *host) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (h *host) Errorf(format string, args ...any) { h.Logf(format, args...) }

// FailNow ends the process, and with it all that runs in its namespaces.
func (h *host) FailNow() { os.Exit(1) }

func (h *host) Fatalf(format string, args ...any) {
	h.Logf(format, args...)
	h.FailNow()
}

func (h *host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

func (h *host) cleanup() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}
