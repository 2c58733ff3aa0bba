package cases

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

const otherNodeCase = "at another node's address only the ports of a service are taken"

// otherNodeCases cover services that list the address of another node, as the service load balancer of k3s does
// (kubernetes#127410, #93175). A backend that gives services' addresses to the node must not cut it off from the other
// one.
func otherNodeCases() []Case {
	return []Case{{Name: otherNodeCase, Rules: "S63",
		run: serving(external(service{Endpoints: cluster.At(localPod1, remotePod1), ListsOther: true}),
			otherNodeStaysReachable)}}
}

func otherNodeStaysReachable(ctx context.Context, b *bed, svc service) error {
	stop, err := b.serveOnOtherNode(svc)
	if err != nil {
		return err
	}
	defer stop()
	served := func() error {
		if err := b.otherNodeServes(ctx, svc); err != nil {
			return err
		}
		return b.otherNodeAnswers(ctx, serverPort)
	}
	if err := served(); err != nil {
		return err
	}
	if err := b.Restart(ctx); err != nil {
		return err
	}
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	if err := served(); err != nil {
		return fmt.Errorf("after a restart:\n\n%w", err)
	}
	svc.ListsOther = false
	if err := b.Put(ctx, svc); err != nil {
		return err
	}
	err = b.soon(ctx, func(b *bed) error {
		return b.otherNodeAnswers(ctx, serverPort, svc.WithDefaults(0).Ports[0].Number)
	})
	if err != nil {
		return fmt.Errorf("after the service no longer listed the address:\n\n%w", err)
	}
	return nil
}

// serveOnOtherNode starts servers on another node at the ports of a service: they get nothing while the service lists
// the node's address.
func (b *bed) serveOnOtherNode(svc service) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for _, f := range b.Env.Families {
		for _, p := range svc.WithDefaults(0).Ports {
			at := netip.AddrPortFrom(network.HostNamed(otherNode).Addr(f), p.Number)
			end, err := b.Network.Serve(otherNode, p.Protocol, at)
			if err != nil {
				stop()
				return nil, err
			}
			stops = append(stops, end)
		}
	}
	return stop, nil
}

// towardsOtherNode are sources on the node under test, and one whose packets it forwards.
func towardsOtherNode() []string { return []string{localPod1, localPod3, theNode, client} }

// otherNodeServes tries the service at the other node's address.
func (b *bed) otherNodeServes(ctx context.Context, svc service) error {
	var flows []network.Attempt
	for _, f := range b.Env.Families {
		for _, p := range svc.WithDefaults(0).Ports {
			to := netip.AddrPortFrom(network.HostNamed(otherNode).Addr(f), p.Number)
			for _, name := range towardsOtherNode() {
				flows = append(flows, network.HostNamed(name).FlowTo(to, p.Protocol, "a service at another node's address"))
			}
		}
	}
	list, err := b.ExpectIn(b.Described, b.Setup.OracleConfig(b.Env.Families), flows)
	if err != nil {
		return err
	}
	return b.Verify(ctx, list)
}

// otherNodeAnswers connects to processes of the other node.
func (b *bed) otherNodeAnswers(ctx context.Context, ports ...uint16) error {
	var list []bystander
	for _, f := range b.Env.Families {
		for _, port := range ports {
			to := netip.AddrPortFrom(network.HostNamed(otherNode).Addr(f), port)
			for _, name := range towardsOtherNode() {
				for _, p := range []model.Protocol{model.TCP, model.UDP} {
					flow := network.HostNamed(name).FlowTo(to, p, "a process of another node")
					list = append(list, bystander{flow, to})
				}
			}
		}
	}
	return b.tryBystanders(ctx, list)
}
