package cases

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// hostAddressCases cover addresses that the node gains and loses while the backend runs.
func hostAddressCases() []Case {
	return []Case{{Name: "node ports follow the addresses of the host", Rules: "S35",
		Setup: setup{NodePorts: cluster.OnAllAddresses}, run: hostAddressesAreFollowed}}
}

// laterAddr is an address that the node gains during the case. Before that it is routed to the outside.
func laterAddr(f model.Family) netip.Addr { return network.Nth(cluster.ExternalIPs(f), 230) }

func hostAddressesAreFollowed(ctx context.Context, b *bed) error {
	if err := b.Put(ctx, service{NodePort: true, Endpoints: cluster.At(localPod1, remotePod1)}); err != nil {
		return err
	}
	if err := b.laterAddressServes(ctx, false); err != nil {
		return fmt.Errorf("before the node has the address:\n\n%w", err)
	}
	const link = "kpl-outside"
	defer func() { _ = b.Network.TakeFromNode(link, laterAddr) }()
	if err := b.Network.GiveToNode(link, laterAddr); err != nil {
		return err
	}
	if err := b.laterAddressServesSoon(ctx, true); err != nil {
		return fmt.Errorf("after the node got the address:\n\n%w", err)
	}
	if err := b.Network.TakeFromNode(link, laterAddr); err != nil {
		return err
	}
	if err := b.laterAddressServesSoon(ctx, false); err != nil {
		return fmt.Errorf("after the node lost the address:\n\n%w", err)
	}
	return nil
}

// laterAddressServesSoon resyncs, and tries until the address serves node ports or no longer does.
func (b *bed) laterAddressServesSoon(ctx context.Context, serves bool) error {
	if err := b.Resync(ctx); err != nil {
		return err
	}
	return b.soon(ctx, func(b *bed) error { return b.laterAddressServes(ctx, serves) })
}

// laterAddressServes tries the node port on the address.
func (b *bed) laterAddressServes(ctx context.Context, serves bool) error {
	node := b.Setup.OracleConfig(b.Env.Families)
	svc := service{NodePort: true}.WithDefaults(0)
	var flows []network.Attempt
	for _, f := range b.Env.Families {
		if serves {
			node.HostAddresses = append(node.HostAddresses, laterAddr(f))
		}
		for i, p := range svc.Ports {
			to := netip.AddrPortFrom(laterAddr(f), svc.NodePortOf(i))
			for _, name := range []string{localPod3, remotePod3, client} {
				flows = append(flows, network.HostNamed(name).FlowTo(to, p.Protocol,
					"the node port on an address that comes and goes"))
			}
		}
	}
	list, err := b.ExpectIn(b.Described, node, flows)
	if err != nil {
		return err
	}
	return b.Verify(ctx, list)
}
