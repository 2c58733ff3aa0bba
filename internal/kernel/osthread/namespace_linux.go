package osthread

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Namespace is an anonymous network namespace: it has no name in the file system, and exists only as long as open files
// and threads refer to it. Then the kernel removes it with its contents, even if the process was killed, so there is
// nothing to clean up.
type Namespace struct {
	// Thread is in the namespace: sockets opened and programs started on it belong to the namespace.
	*Thread
	// File is the namespace. Other processes can open it by its name.
	File *os.File
}

// NewNamespace creates a network namespace, with the loopback interface down.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{}
	thread, err := NewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		n.File = os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	n.Thread = thread
	return n, nil
}

// FD returns the file descriptor of the namespace.
func (n *Namespace) FD() int { return int(n.File.Fd()) }

// Close ends the thread and closes the file.
func (n *Namespace) Close() {
	n.Thread.Close()
	_ = n.File.Close()
}

// Enter starts a thread in the network namespace with this file descriptor.
func Enter(namespace int) (*Thread, error) {
	t, err := NewThread(func() error { return unix.Setns(namespace, unix.CLONE_NEWNET) })
	if err != nil {
		return nil, fmt.Errorf("enter the network namespace: %w", err)
	}
	return t, nil
}

// In calls f on a new thread in a network namespace, and returns its error.
func In(namespace int, f func() error) error {
	t, err := Enter(namespace)
	if err != nil {
		return err
	}
	defer t.Close()
	return t.Do(f)
}
