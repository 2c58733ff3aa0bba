package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// namespace is a network namespace with a thread that opens sockets and configures the network. Functions on the thread
// must not block, because all callers share it.
type namespace struct {
	*osthread.Namespace
	name string
}

// newNamespace creates a network namespace.
func newNamespace(name string) (*namespace, error) {
	ns, err := osthread.NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &namespace{ns, name}, nil
}

// socket opens a socket in the namespace.
func (ns *namespace) socket(family, kind, protocol int) (fd int, err error) {
	err = ns.Do(func() error {
		fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// sysctl is a kernel parameter below /proc/sys/net and its value.
type sysctl struct{ path, value string }

// setSysctls sets kernel parameters of the namespace.
func (ns *namespace) setSysctls(list []sysctl) error {
	return ns.Do(func() error {
		var errs []error
		for _, s := range list {
			// The kernel shows each thread the parameters of the thread's own namespace.
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0))
		}
		return errors.Join(errs...)
	})
}

// Families returns the IP families that network namespaces have here, or why none can be created.
func Families() ([]model.Family, error) {
	ns, err := newNamespace("kpl-probe")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	families := []model.Family{model.IPv4}
	err = ns.Do(func() error {
		_, err := os.Stat("/proc/sys/net/ipv6")
		if err == nil {
			families = append(families, model.IPv6)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return families, err
}
