package testns

import (
	"runtime"
	"testing"

	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/internal/testneed"
)

// Namespace is a network namespace that lasts as long as a test.
type Namespace struct {
	*osthread.Namespace
	t testing.TB
}

// New makes a network namespace with the loopback interface down. It needs root.
func New(t testing.TB) *Namespace {
	t.Helper()
	testneed.Root(t)
	n, err := osthread.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return &Namespace{n, t}
}

// Handle is the namespace for packages netns and netlink of vishvananda.
func (n *Namespace) Handle() netns.NsHandle { return netns.NsHandle(n.FD()) }

// Do runs f on a thread in the namespace and fails the test if it returns an error.
func (n *Namespace) Do(f func() error) {
	n.t.Helper()
	if err := n.Namespace.Do(f); err != nil {
		n.t.Fatalf("in a network namespace: %v", err)
	}
}

// Enter moves the test to a new network namespace, in which it stays, on its thread, until it ends. It needs root.
func Enter(t testing.TB) netns.NsHandle {
	t.Helper()
	testneed.Root(t)
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatalf("the network namespace of the test: %v", err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = ns.Close()
		if err := netns.Set(before); err != nil {
			t.Errorf("leaving the namespace: %v", err)
			return // the thread stays locked and ends with the goroutine
		}
		_ = before.Close()
		runtime.UnlockOSThread()
	})
	return ns
}
