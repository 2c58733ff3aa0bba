package cases

import (
	"context"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func nodePortCases() []Case {
	return []Case{
		{Name: freeNumbersCase, Rules: "S35",
			Needs: []backend.Feature{backend.NodePortAddresses}, run: otherAddressesStayFree},
	}
}

// otherAddressesStayFree starts processes on the node that listen on node-port numbers, on an address without node
// ports.
func otherAddressesStayFree(ctx context.Context, b *bed) error {
	flows := b.flows(service{NodePort: true}, 0, paths(fromAll, []destination{toOtherNodePort}))
	for i, f := range flows {
		if slices.ContainsFunc(flows[:i], func(g network.Attempt) bool {
			return g.Destination == f.Destination && g.Protocol == f.Protocol
		}) {
			continue
		}
		stop, err := b.Network.Serve(theNode, f.Protocol, f.Destination)
		if err != nil {
			return err
		}
		defer stop()
	}
	for _, endpoints := range [][]endpoint{cluster.At(localPod1, remotePod1), nil} {
		if err := b.Put(ctx, service{NodePort: true, Endpoints: endpoints}); err != nil {
			return err
		}
		list, err := b.Expect(flows)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].Served = true
		}
		if err := b.Verify(ctx, list); err != nil {
			return err
		}
	}
	return nil
}
