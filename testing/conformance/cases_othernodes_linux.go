package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

const otherNodeCase = "at another node's address only the ports of a service are taken"

// otherNodeCases cover services that list the address of another node, as the service load balancer of k3s does
// (kubernetes#127410, #93175). A backend that gives services' addresses to the node must not cut it off from the other
// one.
func otherNodeCases() []testCase {
	return []testCase{{name: otherNodeCase, rules: "S63",
		run: serving(external(service{endpoints: at(localPod1, remotePod1), listsOther: true}), otherNodeStaysReachable)}}
}

func otherNodeStaysReachable(ctx context.Context, b *testbed, svc service) error {
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
	if err := b.restart(ctx); err != nil {
		return err
	}
	if err := b.put(ctx, svc); err != nil {
		return err
	}
	if err := served(); err != nil {
		return fmt.Errorf("after a restart:\n\n%w", err)
	}
	svc.listsOther = false
	if err := b.put(ctx, svc); err != nil {
		return err
	}
	err = b.soon(ctx, func(b *testbed) error {
		return b.otherNodeAnswers(ctx, serverPort, svc.withDefaults(0).ports[0].number)
	})
	if err != nil {
		return fmt.Errorf("after the service no longer listed the address:\n\n%w", err)
	}
	return nil
}

// serveOnOtherNode starts servers on another node at the ports of a service: they get nothing while the service lists
// the node's address.
func (b *testbed) serveOnOtherNode(svc service) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for _, f := range b.env.Families {
		for _, p := range svc.withDefaults(0).ports {
			at := netip.AddrPortFrom(network.PlaceNamed(otherNode).Addr(f), p.number)
			end, err := b.n.Serve(otherNode, p.protocol, at)
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
func (b *testbed) otherNodeServes(ctx context.Context, svc service) error {
	var flows []network.Attempt
	for _, f := range b.env.Families {
		for _, p := range svc.withDefaults(0).ports {
			to := netip.AddrPortFrom(network.PlaceNamed(otherNode).Addr(f), p.number)
			for _, name := range towardsOtherNode() {
				flows = append(flows, network.PlaceNamed(name).FlowTo(to, p.protocol, "a service at another node's address"))
			}
		}
	}
	list, err := b.expectIn(b.described, b.setup.oracleConfig(b.env.Families), flows)
	if err != nil {
		return err
	}
	return b.verify(ctx, list)
}

// otherNodeAnswers connects to processes of the other node.
func (b *testbed) otherNodeAnswers(ctx context.Context, ports ...uint16) error {
	var list []bystander
	for _, f := range b.env.Families {
		for _, port := range ports {
			to := netip.AddrPortFrom(network.PlaceNamed(otherNode).Addr(f), port)
			for _, name := range towardsOtherNode() {
				for _, p := range []model.Protocol{model.TCP, model.UDP} {
					flow := network.PlaceNamed(name).FlowTo(to, p, "a process of another node")
					list = append(list, bystander{flow, to})
				}
			}
		}
	}
	return b.tryBystanders(ctx, list)
}

// otherNodeIPs returns the addresses of the nodes that are not under test.
func otherNodeIPs(families []model.Family) (list []netip.Addr) {
	for _, name := range []string{otherNode, thirdNode} {
		for _, f := range families {
			list = append(list, network.PlaceNamed(name).Addr(f))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}
