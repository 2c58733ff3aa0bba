package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
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

// logged logs an error that no service port has, if a line is due. It returns those that are about the kernel as a
// whole.
func logged(ctx context.Context, lines *failures.Lines, err error) error {
	if err == nil || concernsAll(err) {
		return err
	}
	if lines.Due(err.Error(), time.Now()) {
		klog.FromContext(ctx).Error(err, "Could not delete unused IPVS objects; trying again")
	}
	return nil
}

// refuse reports to the table which service ports are not fully served: of those that were touched, and those at an
// address that is newly refused, or no longer. The table remembers what was reported about all others.
func (f *family) refuse(c *frontend.Changes) {
	for a := range f.addresses.changed {
		if u := f.addresses.users[a]; u != nil {
			for _, s := range u.all {
				f.addresses.looked++
				if s.owner != nil {
					f.ports.touched[s.owner.name] = true
				}
			}
		}
	}
	clear(f.addresses.changed)
	for name := range f.ports.touched {
		own, pc := f.ports.byName[name], c.Port(name)
		pc.Report(own.errors(f.addresses.refused), func() bool { return f.servesExternal(own, pc) })
	}
	clear(f.ports.touched)
}

// errors returns why the port is not served. It may have addresses that were refused.
func (own *port) errors(refused map[netip.Addr]error) (errs []error) {
	if own.err != nil {
		errs = append(errs, own.err)
	}
	for s := range own.servers {
		if s.err != nil {
			errs = append(errs, s.err)
		}
		errs = slices.AppendSeq(errs, maps.Values(s.refused))
		if err := refused[s.key.Addr]; err != nil && s.key.Mark == 0 {
			errs = append(errs, err)
		}
	}
	return errs
}

// servesExternal reports whether a service port is served at any of its node port, VIPs and external IPs.
func (f *family) servesExternal(own *port, c *frontend.PortChange) bool {
	for fr := range c.Frontends() {
		if fr.Kind == frontend.ClusterIP {
			continue
		}
		for _, key := range f.ports.keys(fr.Key) {
			s := f.servers.byKey[key]
			if s != nil && s.owner == own && s.serves() && f.addresses.refused[key.Addr] == nil {
				return true
			}
		}
	}
	return false
}
