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

// otherAddressesStayFree lets a process of the node listen on node-port numbers, on an address that serves no node
// ports.
func otherAddressesStayFree(ctx context.Context, s *session) error {
	flows := s.flows(service{nodePort: true}, 0, paths(fromAll, []destination{toOtherNodePort}))
	for i, f := range flows {
		if slices.ContainsFunc(flows[:i], func(g network.Attempt) bool {
			return g.Destination == f.Destination && g.Protocol == f.Protocol
		}) {
			continue
		}
		stop, err := s.n.Serve(theNode, f.Protocol, f.Destination)
		if err != nil {
			return err
		}
		defer stop()
	}
	for _, endpoints := range [][]endpoint{at(localPod1, remotePod1), nil} {
		if err := s.put(ctx, service{nodePort: true, endpoints: endpoints}); err != nil {
			return err
		}
		list, err := s.expect(flows)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].served = true
		}
		if err := s.verify(ctx, list); err != nil {
			return err
		}
	}
	return nil
}
