package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// concernsAll reports whether an error is about the kernel, its socket or this process, so that other requests may fail
// as well, or it is not known what the kernel did. Every other error is about the object of the request.
func concernsAll(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	return slices.Contains([]syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENOSYS, syscall.EOPNOTSUPP,
		syscall.EMFILE, syscall.ENFILE, syscall.EBADF, syscall.ENOBUFS, syscall.EAGAIN, syscall.EINTR}, errno)
}

// logged logs an error that no service port has. It returns those that are about the kernel as a whole.
func logged(ctx context.Context, err error) error {
	if err == nil || concernsAll(err) {
		return err
	}
	klog.FromContext(ctx).Error(err, "Could not delete unused IPVS objects; trying again")
	return nil
}

// retryRefused makes the next commit try again what has failed. Otherwise that is tried only when it changes.
func (f *family) retryRefused(c *frontend.Changes) {
	f.ports.retryUnmarked(c)
	for s := range f.servers.refusing {
		for target := range s.refused {
			s.changed[target] = true
		}
		f.servers.dirty[s] = true
	}
	for a := range f.addresses.refused {
		f.addresses.dirty[a] = true
	}
}

// refuse tells the table which service ports are not completely served.
func (f *family) refuse(c *frontend.Changes) {
	refuse := func(s *server, err error) {
		if s.owner != nil && err != nil {
			p := c.Port(s.owner.name)
			p.Refuse(p.After, err)
		}
	}
	f.ports.refuseUnmarked(c)
	for s := range f.servers.refusing {
		refuse(s, s.err)
		for _, err := range s.refused {
			refuse(s, err)
		}
	}
	for a, err := range f.addresses.refused {
		for s := range f.addresses.users[a] {
			refuse(s, err)
		}
	}
}

// refuse notes why a real server is not as it is wanted.
func (s *server) refuse(target netip.AddrPort, err error) {
	if s.refused == nil {
		s.refused = map[netip.AddrPort]error{}
	}
	s.refused[target] = err
}
