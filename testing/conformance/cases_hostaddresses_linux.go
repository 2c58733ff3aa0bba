package conformance

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// hostAddressCases are about addresses that are added to the node and removed while the backend runs.
func hostAddressCases() []testCase {
	return []testCase{{name: "node ports follow the addresses of the host", rules: "S35",
		setup: setup{nodePorts: onAllAddresses}, run: hostAddressesAreFollowed}}
}

// laterAddr is an address that the node gets later. Until then it is routed to the outside.
func laterAddr(f model.Family) netip.Addr { return network.Nth(externalIPs(f), 230) }

func hostAddressesAreFollowed(ctx context.Context, s *session) error {
	if err := s.put(ctx, service{nodePort: true, endpoints: at(localPod1, remotePod1)}); err != nil {
		return err
	}
	if err := s.laterAddressServes(ctx, false); err != nil {
		return fmt.Errorf("before the node has the address:\n\n%w", err)
	}
	const link = "kpl-outside"
	defer func() { _ = s.n.TakeFromNode(link, laterAddr) }()
	if err := s.n.GiveToNode(link, laterAddr); err != nil {
		return err
	}
	if err := s.laterAddressServesSoon(ctx, true); err != nil {
		return fmt.Errorf("after the node got the address:\n\n%w", err)
	}
	if err := s.n.TakeFromNode(link, laterAddr); err != nil {
		return err
	}
	if err := s.laterAddressServesSoon(ctx, false); err != nil {
		return fmt.Errorf("after the node lost the address:\n\n%w", err)
	}
	return nil
}

// laterAddressServesSoon resyncs, as kubeproxy.Run does periodically, and tries until the address serves, or does not.
func (s *session) laterAddressServesSoon(ctx context.Context, serves bool) error {
	if err := s.resync(ctx); err != nil {
		return err
	}
	return s.soon(ctx, func(s *session) error { return s.laterAddressServes(ctx, serves) })
}

// laterAddressServes tries the node port on the address.
func (s *session) laterAddressServes(ctx context.Context, serves bool) error {
	node := s.setup.oracleConfig(s.env.Families)
	svc := service{nodePort: true}.withDefaults(0)
	var flows []network.Attempt
	for _, f := range s.env.Families {
		if serves {
			node.HostAddresses = append(node.HostAddresses, laterAddr(f))
		}
		for i, p := range svc.ports {
			to := netip.AddrPortFrom(laterAddr(f), svc.nodePortOf(i))
			for _, name := range []string{localPod3, remotePod3, client} {
				flows = append(flows, network.PlaceNamed(name).FlowTo(to, p.protocol,
					"the node port on an address that comes and goes"))
			}
		}
	}
	list, err := s.expectIn(s.told, node, flows)
	if err != nil {
		return err
	}
	return s.verify(ctx, list)
}
