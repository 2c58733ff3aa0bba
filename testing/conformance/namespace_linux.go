package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
)

// namespace is a network namespace. Its thread opens sockets and configures the network; what it runs must not block,
// because all callers share it.
type namespace struct {
	*osthread.Namespace
	name string
}

// newNamespace makes a network namespace.
func newNamespace(name string) (*namespace, error) {
	ns, err := osthread.NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &namespace{ns, name}, nil
}

// Do calls f on a thread that is in the network namespace of the node, and returns its error: sockets that f opens,
// with net.Dial as well, and programs that it starts belong to the node. It may be called from any goroutine,
// concurrently, until the test ends.
func (e Env) Do(f func() error) error { return osthread.In(int(e.NetNS.Fd()), f) }

// sysctl is a kernel parameter below /proc/sys/net and its value.
type sysctl struct{ path, value string }

// setSysctls sets kernel parameters of the namespace.
func (ns *namespace) setSysctls(list []sysctl) error {
	return ns.Do(func() error {
		var errs []error
		for _, s := range list {
			// The kernel shows each thread the parameters of its own namespace.
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0))
		}
		return errors.Join(errs...)
	})
}
