package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
)

// namespace is an anonymous network namespace: it has no name in the file system, and only open files and threads keep
// it. The kernel removes it with everything in it when they are gone, even if the process was killed, so there is never
// anything to clean up after an earlier run.
type namespace struct {
	name string
	file *os.File
	// sockets opens sockets and configures the network; a second thread in the same namespace can be had with thread.
	sockets *nsThread
}

// newNamespace makes a network namespace.
func newNamespace(name string) (*namespace, error) {
	ns := &namespace{name: name}
	thread, err := newThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		// Other processes too can open it by this name.
		ns.file = os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	ns.sockets = thread
	return ns, nil
}

// thread returns a new thread in the namespace.
func (ns *namespace) thread() (*nsThread, error) {
	return newThread(func() error { return unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET) })
}

// do runs f on a thread in the namespace. f must not block, because all callers share the thread.
func (ns *namespace) do(f func() error) error { return ns.sockets.do(f) }

func (ns *namespace) close() {
	ns.sockets.close()
	_ = ns.file.Close()
}

// Do calls f on a thread that is in the network namespace of the node, and returns its error: sockets that f opens,
// with net.Dial as well, and programs that it starts belong to the node. It may be called from any goroutine,
// concurrently, until the test ends.
func (e Env) Do(f func() error) error {
	done := make(chan error, 1)
	osthread.Go(func() {
		err := errThreadEnded
		defer func() { done <- err }()
		if err = unix.Setns(int(e.NetNS.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the node's network namespace: %w", err)
			return
		}
		err = errThreadEnded // unless f returns
		err = f()
	})
	return <-done
}

// sysctl is a kernel parameter below /proc/sys/net and its value.
type sysctl struct{ path, value string }

// setSysctls sets kernel parameters of the namespace.
func (ns *namespace) setSysctls(list []sysctl) error {
	return ns.do(func() error {
		var errs []error
		for _, s := range list {
			// The kernel shows each thread the parameters of its own namespace.
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0))
		}
		return errors.Join(errs...)
	})
}

// nsThread is an operating-system thread that stays in one network namespace and runs functions there, one at a time.
// Sockets opened on it belong to the namespace whoever uses them, and so do child processes started on it.
type nsThread struct {
	jobs  chan func()
	ended chan struct{}
	once  sync.Once
}

var errThreadEnded = errors.New(
	"the thread in the namespace has ended: did a function on it call t.FailNow or runtime.Goexit?")

// newThread starts a thread and enters the namespace with enter.
func newThread(enter func() error) (*nsThread, error) {
	t := &nsThread{jobs: make(chan func()), ended: make(chan struct{})}
	entered := make(chan error)
	osthread.Go(func() {
		defer close(t.ended)
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for job := range t.jobs {
			job()
		}
	})
	return t, <-entered
}

// do runs f on the thread and returns its error; in a simulation, which has no thread, it just runs f.
func (t *nsThread) do(f func() error) error {
	if t == nil {
		return f()
	}
	done := make(chan error, 1)
	select {
	case t.jobs <- func() { done <- f() }:
	case <-t.ended:
		return errThreadEnded
	}
	select {
	case err := <-done:
		return err
	case <-t.ended:
		return errThreadEnded
	}
}

// close ends the thread, and waits until it has. do must not be called afterwards.
func (t *nsThread) close() {
	if t == nil {
		return
	}
	t.once.Do(func() { close(t.jobs) })
	<-t.ended
}
