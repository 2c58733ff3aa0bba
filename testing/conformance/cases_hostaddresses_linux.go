package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// hostAddressCases are about addresses that are added to the node and removed while the backend runs.
func hostAddressCases() []testCase {
	return []testCase{{name: "node ports follow the addresses of the host", rules: "S35",
		setup: setup{nodePorts: onAllAddresses}, needs: []Feature{HostAddressChanges}, run: hostAddressesAreFollowed}}
}

// laterAddr is an address that the node gets later. Until then it is routed to the outside.
func laterAddr(f model.Family) netip.Addr { return nth(planOf(f).externalIPs, 230) }

func hostAddressesAreFollowed(ctx context.Context, s *session) error {
	if err := s.put(ctx, service{nodePort: true, endpoints: at(localPod1, remotePod1)}); err != nil {
		return err
	}
	if err := s.laterAddressServes(ctx, false); err != nil {
		return fmt.Errorf("before the node has the address:\n\n%w", err)
	}
	change := func(change func(netip.Prefix) error) error {
		return s.n.node.Do(func() error {
			var errs []error
			for _, f := range s.env.Families {
				errs = append(errs, change(hostPrefix(laterAddr(f))))
			}
			return errors.Join(errs...)
		})
	}
	remove := func() error { return change(func(p netip.Prefix) error { return delAddr("kpl-outside", p) }) }
	defer func() { _ = remove() }()
	if err := change(func(p netip.Prefix) error { return addAddr("kpl-outside", p) }); err != nil {
		return err
	}
	if err := s.laterAddressServesSoon(ctx, true); err != nil {
		return fmt.Errorf("after the node got the address:\n\n%w", err)
	}
	if err := remove(); err != nil {
		return err
	}
	if err := s.laterAddressServesSoon(ctx, false); err != nil {
		return fmt.Errorf("after the node lost the address:\n\n%w", err)
	}
	return nil
}

// laterAddressServesSoon resyncs, as kubeproxy.Run does periodically, and tries until the address serves, or does not.
func (s *session) laterAddressServesSoon(ctx context.Context, serves bool) error {
	if err := s.resync(); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return s.soon(ctx, func(s *session) error { return s.laterAddressServes(ctx, serves) })
}

// laterAddressServes tries the node port on the address.
func (s *session) laterAddressServes(ctx context.Context, serves bool) error {
	config := s.setup.oracleConfig(s.env.Families)
	svc := service{nodePort: true}.withDefaults(0)
	var flows []flow
	for _, f := range s.env.Families {
		if serves {
			config.HostAddresses = append(config.HostAddresses, laterAddr(f))
		}
		for i, p := range svc.ports {
			for _, name := range []string{localPod3, remotePod3, client} {
				from := placeNamed(name)
				flows = append(flows,
					flow{from: from, about: name + " to the node port on an address that comes and goes",
						Flow: oracle.Flow{From: from.kind, Source: from.addr(f), Protocol: p.protocol,
							Destination: netip.AddrPortFrom(laterAddr(f), svc.nodePortOf(i))}})
			}
		}
	}
	o, err := s.told.oracleWith(config)
	if err != nil {
		return err
	}
	list, err := s.expectAll(o, flows)
	if err != nil {
		return err
	}
	return s.verify(ctx, o, list)
}

// delAddr removes an address from a link, if it exists.
func delAddr(link string, addr netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(addr.Addr().AsSlice()) })
	if i < 0 {
		return nil
	}
	return netlink.AddrDel(l, &addrs[i])
}
