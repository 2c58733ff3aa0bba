package conformance

import (
	"context"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func nodePortCases() []testCase {
	return []testCase{
		{name: freeNumbersCase, rules: "S35",
			needs: []Feature{NodePortAddresses}, run: otherAddressesStayFree},
	}
}

// otherAddressesStayFree starts processes on the node that listen on node-port numbers, on an address without node
// ports.
func otherAddressesStayFree(ctx context.Context, b *testbed) error {
	flows := b.flows(service{nodePort: true}, 0, paths(fromAll, []destination{toOtherNodePort}))
	for i, f := range flows {
		if slices.ContainsFunc(flows[:i], func(g network.Attempt) bool {
			return g.Destination == f.Destination && g.Protocol == f.Protocol
		}) {
			continue
		}
		stop, err := b.n.Serve(theNode, f.Protocol, f.Destination)
		if err != nil {
			return err
		}
		defer stop()
	}
	for _, endpoints := range [][]endpoint{at(localPod1, remotePod1), nil} {
		if err := b.put(ctx, service{nodePort: true, endpoints: endpoints}); err != nil {
			return err
		}
		list, err := b.expect(flows)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].served = true
		}
		if err := b.verify(ctx, list); err != nil {
			return err
		}
	}
	return nil
}
