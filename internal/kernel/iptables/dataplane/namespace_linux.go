package dataplane

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
)

// namespace is a handle of a network namespace. A program inherits the namespace of the thread that starts it, and a
// goroutine can be on any thread.
type namespace struct{ netns.NsHandle }

func currentNamespace() (*namespace, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("the network namespace: %w", err)
	}
	return &namespace{ns}, nil
}

// do calls f on a thread in the namespace. It needs CAP_SYS_ADMIN only if the process is in another one. A nil
// namespace means the calling thread's.
func (n *namespace) do(f func() error) error {
	if n == nil {
		return f()
	}
	runtime.LockOSThread()
	if n.isCurrent() {
		defer runtime.UnlockOSThread()
		return f()
	}
	runtime.UnlockOSThread()
	return osthread.In(int(n.NsHandle), f)
}

func (n *namespace) isCurrent() bool {
	current, err := netns.Get()
	if err != nil {
		return false
	}
	defer func() { _ = current.Close() }()
	return n.Equal(current)
}
