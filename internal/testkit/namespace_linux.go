package testkit

import (
	"errors"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
)

// Namespace is a network namespace that lasts as long as a test.
type Namespace struct {
	*osthread.Namespace
	t testing.TB
}

// NewNamespace creates a network namespace with the loopback interface down. It needs root.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	NeedRoot(t)
	needNetfilter(t)
	n, err := osthread.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return &Namespace{n, t}
}

// Handle returns the namespace for packages netns and netlink of vishvananda.
func (n *Namespace) Handle() netns.NsHandle { return netns.NsHandle(n.FD()) }

// Do runs f on a thread in the namespace, and fails the test if it returns an error. If f skips the test, that ends the
// thread, and Do skips it too.
func (n *Namespace) Do(f func() error) {
	n.t.Helper()
	if err := n.Namespace.Do(f); err != nil {
		if errors.Is(err, osthread.ErrEnded) && n.t.Skipped() && !n.t.Failed() {
			n.t.SkipNow()
		}
		n.t.Fatalf("in a network namespace: %v", err)
	}
}

// EnterNamespace moves the test's goroutine and thread to a new network namespace until the end of the test. It needs
// root.
func EnterNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	NeedRoot(t)
	needNetfilter(t)
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

// needNetfilter requires netfilter, which most tests in a namespace need. An emulated kernel, such as that of qemu's
// user emulation, may have none of it, or only half.
func needNetfilter(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err == nil {
		_ = unix.Close(fd)
	}
	Need(t, !errors.Is(err, unix.EPROTONOSUPPORT), "sockets of netfilter")
}
