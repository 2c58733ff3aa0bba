package testns

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Namespace is a network namespace without a name: threads and open files alone hold it, so that nothing is left when
// the test process ends, however it does.
type Namespace struct {
	t    testing.TB
	fd   netns.NsHandle
	jobs chan func()
}

// New makes a network namespace with the loopback interface down. It needs root.
func New(t testing.TB) *Namespace {
	t.Helper()
	need.Root(t)
	n := &Namespace{t: t, jobs: make(chan func())}
	ready := make(chan error)
	osthread.Go(func() {
		var err error
		n.fd, err = netns.New()
		ready <- err
		for job := range n.jobs {
			job()
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() {
		close(n.jobs)
		_ = n.fd.Close()
	})
	return n
}

// FD is the file descriptor of the namespace.
func (n *Namespace) FD() int { return int(n.fd) }

// Handle is the namespace for packages netns and netlink of vishvananda.
func (n *Namespace) Handle() netns.NsHandle { return n.fd }

// Do runs f on a thread in the namespace and fails the test if it returns an error. Sockets that f opens and processes
// that it starts belong to the namespace.
func (n *Namespace) Do(f func() error) {
	n.t.Helper()
	done := make(chan error, 1)
	n.jobs <- func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- f()
	}
	if err := <-done; err != nil {
		n.t.Fatalf("in a network namespace: %v", err)
	}
}

// Enter moves the test to a new network namespace, in which it stays, on its thread, until it ends. It needs root.
func Enter(t testing.TB) netns.NsHandle {
	t.Helper()
	need.Root(t)
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
