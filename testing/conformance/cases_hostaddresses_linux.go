package conformance

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// hostAddressCases cover addresses that the node gains and loses while the backend runs.
func hostAddressCases() []testCase {
	return []testCase{{name: "node ports follow the addresses of the host", rules: "S35",
		setup: setup{nodePorts: onAllAddresses}, run: hostAddressesAreFollowed}}
}

// laterAddr is an address that the node gains during the case. Before that it is routed to the outside.
func laterAddr(f model.Family) netip.Addr { return network.Nth(externalIPs(f), 230) }

func hostAddressesAreFollowed(ctx context.Context, b *testbed) error {
	if err := b.put(ctx, service{nodePort: true, endpoints: at(localPod1, remotePod1)}); err != nil {
		return err
	}
	if err := b.laterAddressServes(ctx, false); err != nil {
		return fmt.Errorf("before the node has the address:\n\n%w", err)
	}
	const link = "kpl-outside"
	defer func() { _ = b.n.TakeFromNode(link, laterAddr) }()
	if err := b.n.GiveToNode(link, laterAddr); err != nil {
		return err
	}
	if err := b.laterAddressServesSoon(ctx, true); err != nil {
		return fmt.Errorf("after the node got the address:\n\n%w", err)
	}
	if err := b.n.TakeFromNode(link, laterAddr); err != nil {
		return err
	}
	if err := b.laterAddressServesSoon(ctx, false); err != nil {
		return fmt.Errorf("after the node lost the address:\n\n%w", err)
	}
	return nil
}

// laterAddressServesSoon resyncs, and tries until the address serves node ports or no longer does.
func (b *testbed) laterAddressServesSoon(ctx context.Context, serves bool) error {
	if err := b.resync(ctx); err != nil {
		return err
	}
	return b.soon(ctx, func(b *testbed) error { return b.laterAddressServes(ctx, serves) })
}

// laterAddressServes tries the node port on the address.
func (b *testbed) laterAddressServes(ctx context.Context, serves bool) error {
	node := b.setup.oracleConfig(b.env.Families)
	svc := service{nodePort: true}.withDefaults(0)
	var flows []network.Attempt
	for _, f := range b.env.Families {
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
	list, err := b.expectIn(b.described, node, flows)
	if err != nil {
		return err
	}
	return b.verify(ctx, list)
}
