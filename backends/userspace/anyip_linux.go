package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// AnyIP makes service addresses local to the node by routes of type local. It needs CAP_NET_ADMIN. Its routes have a
// protocol number of their own, by which it finds them again after a restart. It does not touch other routes.
//
// Some addresses are not served, whoever lists them: those that NewAnyIP is given, and the gateways in the main routing
// table, as of the last full Update. Addresses of the node get no route as long as they are the node's, because they
// need none: whoever lists them, what the node does with their other ports stays as it is, also after it has lost them,
// until the next full Update.
type AnyIP struct {
	handle   *netlink.Handle
	link     int
	never    []netip.Prefix
	gateways map[netip.Addr]bool
}

// The protocol and the metric of the routes. The metric keeps them apart from the route that the kernel adds for an
// address of the host.
const routeProtocol, routeMetric = 75, 75

// NewAnyIP returns an AnyIP for the network namespace of the calling thread. It never serves the addresses in never,
// which should have those of the API server. Close it after the backend.
func NewAnyIP(never ...netip.Prefix) (*AnyIP, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("userspace: open netlink: %w", err)
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("userspace: loopback interface: %w", err)
	}
	return &AnyIP{handle: handle, link: lo.Attrs().Index, never: slices.Clone(never), gateways: map[netip.Addr]bool{}}, nil
}

// Close releases the netlink socket. Routes stay.
func (a *AnyIP) Close() { a.handle.Close() }

// Control lets a socket listen on an address that no interface has. IPv6 needs that despite the route. It fails for an
// address that is never served.
func (a *AnyIP) Control(_, address string, c syscall.RawConn) error {
	if at, err := netip.ParseAddrPort(address); err == nil && a.isNeverServed(at.Addr()) {
		return fmt.Errorf("%v is a gateway of this node, or is never to be served", at.Addr())
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	})
	return errors.Join(err, failed)
}

func (a *AnyIP) isNeverServed(addr netip.Addr) bool {
	return a.gateways[addr] || slices.ContainsFunc(a.never, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ListenOn implements [Addresses].
func (a *AnyIP) ListenOn(fr frontend.Frontend) []netip.AddrPort { return own(fr) }

// Update implements [Addresses].
func (a *AnyIP) Update(ctx context.Context, f model.Family, full bool, add, remove []netip.Addr) error {
	var hosts map[netip.Addr]bool
	if len(add) > 0 {
		var err error
		if hosts, err = a.hosts(f); err != nil {
			return err
		}
	}
	if full {
		if err := a.findGateways(f); err != nil {
			return err
		}
		have, err := a.list(f)
		if err != nil {
			return err
		}
		for _, addr := range add {
			if !a.isNeverServed(addr) && !hosts[addr] {
				delete(have, addr)
			}
		}
		for addr := range have {
			remove = append(remove, addr)
		}
	}
	var errs failures.List
	for _, addr := range add {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if a.isNeverServed(addr) || hosts[addr] {
			continue // its listeners fail, see Control, or need no route
		}
		if err := a.handle.RouteAdd(a.route(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs.Add(fmt.Errorf("add a local route to %v: %w", addr, err))
			continue
		}
		if addr.Is6() {
			if err := a.touch(addr); err != nil {
				errs.Add(fmt.Errorf("refresh the route to %v: %w", addr, err))
			}
		}
	}
	for _, addr := range remove {
		if err := a.handle.RouteDel(a.route(addr)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs.Add(fmt.Errorf("delete the local route to %v: %w", addr, err))
		}
	}
	return errors.Join(errs.Err(), ctx.Err())
}

func (a *AnyIP) route(addr netip.Addr) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: a.link, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
		Protocol: routeProtocol, Priority: routeMetric,
		Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
	}
	if addr.Is4() {
		r.Scope = netlink.SCOPE_HOST
	}
	return r
}

// touch makes sockets of this node look up the route to an IPv6 address again. They keep a cached route until a route
// to that address changes in the same table (seen on Linux 6.18), usually the main table, though the new local route is
// in another one. So touch adds a route there and deletes it. No packet takes it, because the local table comes first.
func (a *AnyIP) touch(addr netip.Addr) error {
	r := a.route(addr)
	r.Table, r.Type = unix.RT_TABLE_MAIN, unix.RTN_UNREACHABLE
	if err := a.handle.RouteAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return a.handle.RouteDel(r)
}

func netlinkFamily(f model.Family) int {
	if f == model.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// findGateways finds out the gateways of a family.
func (a *AnyIP) findGateways(f model.Family) error {
	routes, err := a.handle.RouteListFiltered(netlinkFamily(f), &netlink.Route{Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	maps.DeleteFunc(a.gateways, func(addr netip.Addr, _ bool) bool { return model.FamilyOf(addr) == f })
	for _, r := range routes {
		for _, hop := range append(r.MultiPath, &netlink.NexthopInfo{Gw: r.Gw}) {
			if addr, ok := netip.AddrFromSlice(hop.Gw); ok {
				a.gateways[addr.Unmap()] = true
			}
		}
	}
	return nil
}

// hosts returns the addresses that the node's interfaces have.
func (a *AnyIP) hosts(f model.Family) (map[netip.Addr]bool, error) {
	list, err := a.handle.AddrList(nil, netlinkFamily(f))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	hosts := make(map[netip.Addr]bool, len(list))
	for _, one := range list {
		if addr, ok := netip.AddrFromSlice(one.IP); ok {
			hosts[addr.Unmap()] = true
		}
	}
	return hosts, nil
}

// list returns the addresses that have a route.
func (a *AnyIP) list(f model.Family) (map[netip.Addr]bool, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol}
	routes, err := a.handle.RouteListFiltered(netlinkFamily(f), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list local routes: %w", err)
	}
	have := map[netip.Addr]bool{}
	for _, r := range routes {
		if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			have[addr.Unmap()] = true
		}
	}
	return have, nil
}
