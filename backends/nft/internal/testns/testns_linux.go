// Package testns gives tests a network namespace of their own.
package testns

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// New moves the test to a new, empty network namespace, in which it stays, on its thread, until it ends.
func New(t testing.TB) netns.NsHandle {
	t.Helper()
	need.Root(t)
	runtime.LockOSThread()
	before, err := netns.Get()
	require.NoError(t, err)
	ns, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Errorf("leaving the namespace: %v", err)
			return // the thread stays locked and ends with the goroutine
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
	return ns
}
