package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/addrwatch"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// loopbackIndex is the index of the loopback interface, in every network namespace.
const loopbackIndex = 1

// deliveryRule is the rule for packets with a bit of the mark.
func deliveryRule(f model.Family, mark uint32) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = int(addressFamily(f)), DeliveryPriority, DeliveryTable, DeliveryProtocol
	r.Mark, r.Mask = mark, &mark
	return r
}

// deliveryRoute is the route that they take.
func deliveryRoute(f model.Family) *netlink.Route {
	bits := f.Loopback().Addr().BitLen()
	return &netlink.Route{Family: int(addressFamily(f)), LinkIndex: loopbackIndex, Table: DeliveryTable,
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Protocol: DeliveryProtocol,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}
}

// Delivery implements [Interface].
func (k *Kernel) Delivery(ctx context.Context, f model.Family, want uint32) (mark uint32, err error) {
	err = k.alone(ctx, func() error {
		rules, err := k.deliveryRules(f, want)
		if err != nil || len(rules) == 0 {
			return err // a route without a rule is harmless, and Deliver deletes both
		}
		if mark = want; slices.ContainsFunc(rules, func(r netlink.Rule) bool { return !delivers(&r, want) }) ||
			!k.isDelivered(f, want) {
			mark = IncompleteDelivery
		}
		return nil
	})
	return mark, err
}

// Deliver implements [Interface].
func (k *Kernel) Deliver(ctx context.Context, f model.Family, mark uint32) error {
	return k.alone(ctx, func() error {
		rules, err := k.deliveryRules(f, mark)
		if err != nil {
			return err
		}
		there := false
		for i := range rules {
			if delivers(&rules[i], mark) {
				there = true
				continue
			}
			if err := k.routes.RuleDel(&rules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete the routing rule %v: %w", &rules[i], err)
			}
		}
		if mark == 0 {
			err := k.routes.RouteDel(deliveryRoute(f))
			if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete the local route of table %d: %w", DeliveryTable, err)
			}
			return nil
		}
		if err := k.routes.RouteAdd(deliveryRoute(f)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add a local route to table %d: %w", DeliveryTable, err)
		}
		if !there {
			if err := k.routes.RuleAdd(deliveryRule(f, mark)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add a routing rule for mark %#x: %w", mark, err)
			}
		}
		if !k.isDelivered(f, mark) {
			return fmt.Errorf("deliver packets with mark %#x: rules or routes of another program come before rule %d and "+
				"table %d: %w", mark, DeliveryPriority, DeliveryTable, unix.EEXIST)
		}
		return nil
	})
}

// deliveryRules returns the rules of Deliver, with any mark. Another program may have made the wanted rule already,
// which is as good.
func (k *Kernel) deliveryRules(f model.Family, want uint32) (rules []netlink.Rule, err error) {
	var list []netlink.Rule
	err = addrwatch.Dump(maxDumps, func() (err error) {
		list, err = k.routes.RuleListFiltered(int(addressFamily(f)), deliveryRule(f, 0), netlink.RT_FILTER_TABLE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	for _, r := range list {
		if r.Protocol == DeliveryProtocol || delivers(&r, want) {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// delivers reports whether a rule is that of Deliver for a mark.
func delivers(r *netlink.Rule, mark uint32) bool {
	return r.Priority == DeliveryPriority && r.Mark == mark && r.Mask != nil && *r.Mask == mark && mark != 0
}

// isDelivered reports whether the kernel would deliver a packet with a mark here, to an address that no host has. It
// finds out without listing all routes, of which there may be very many.
func (k *Kernel) isDelivered(f model.Family, mark uint32) bool {
	nobody := net.IPv4(192, 0, 2, 1)
	if f == model.IPv6 {
		nobody = net.ParseIP("2001:db8::1")
	}
	routes, err := k.routes.RouteGetWithOptions(nobody, &netlink.RouteGetOptions{Mark: mark})
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
}
