package userspace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// localRoutes are Addresses that make service addresses local to the network namespace by routes of type local, which
// have a protocol number and a metric of their own. They take any address: they are for tests only.
type localRoutes struct {
	userspace.Existing
	handle *netlink.Handle
	lo     int
}

const routeProtocol, routeMetric = 75, 75

// newLocalRoutes returns local routes in the network namespace of the calling thread. Close the handle after use.
func newLocalRoutes() (*localRoutes, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		handle.Close()
		return nil, err
	}
	return &localRoutes{handle: handle, lo: lo.Attrs().Index}, nil
}

// Control lets a socket listen on an address that no interface has. IPv6 needs that despite the route.
func (*localRoutes) Control(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	}), err)
}

// Update implements [userspace.Addresses]. A full one leaves the routes that stay: a packet that comes between the
// removal of a route and its return would leave the node.
func (l *localRoutes) Update(_ context.Context, f model.Family, full bool, add, remove []netip.Addr) error {
	var errs []error
	if full {
		routes, err := l.list()
		errs = append(errs, err)
		for _, r := range routes {
			if a, _ := netip.AddrFromSlice(r.Dst.IP); model.FamilyOf(a.Unmap()) == f && !slices.Contains(add, a.Unmap()) {
				remove = append(remove, a.Unmap())
			}
		}
	}
	for _, a := range remove {
		if err := l.handle.RouteDel(l.route(a)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	for _, a := range add {
		if err := l.handle.RouteAdd(l.route(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, err)
		}
		if a.Is6() {
			errs = append(errs, l.touch(a))
		}
	}
	return errors.Join(errs...)
}

func (l *localRoutes) route(a netip.Addr) *netlink.Route {
	r := &netlink.Route{LinkIndex: l.lo, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol,
		Priority: routeMetric, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is4() {
		r.Scope = netlink.SCOPE_HOST
	}
	return r
}

// touch makes sockets look up the route to an IPv6 address again. They keep a cached route until a route to that
// address changes in the same table (seen on Linux 6.18), usually the main table, though the new route is in another
// one.
func (l *localRoutes) touch(a netip.Addr) error {
	r := l.route(a)
	r.Table, r.Type = unix.RT_TABLE_MAIN, unix.RTN_UNREACHABLE
	if err := l.handle.RouteAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return l.handle.RouteDel(r)
}

// list returns the routes.
func (l *localRoutes) list() ([]netlink.Route, error) {
	return l.handle.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC,
		Protocol: routeProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
}
