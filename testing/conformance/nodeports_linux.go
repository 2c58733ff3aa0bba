package conformance

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/oracle"
)

func nodePortCases() []testCase {
	return []testCase{
		{name: "where node ports are not served, their numbers are free for the node's own processes", rules: "S35",
			needs: []Feature{NodePortAddresses}, run: otherAddressesStayFree},
	}
}

// otherAddressesStayFree lets a process of the node listen on node-port numbers, on an address that serves no node
// ports.
func otherAddressesStayFree(ctx context.Context, s *session) error {
	svc := service{nodePort: true}.withDefaults(0)
	var flows []flow
	for _, f := range s.env.Families {
		for i, p := range svc.ports {
			to := toOtherNodePort.resolve(svc, i, f)
			stop, err := s.n.servers.serve(s.n.node, p.protocol, to)
			if err != nil {
				return err
			}
			defer stop()
			for _, from := range fromAll {
				place := placeNamed(from)
				flows = append(flows, flow{from: place, about: from + " to a process of the node", Flow: oracle.Flow{
					From: place.kind, Source: place.addr(f), Destination: to, Protocol: p.protocol}})
			}
		}
	}
	for _, endpoints := range [][]endpoint{at(localPod1, remotePod1), nil} {
		if err := s.put(ctx, service{nodePort: true, endpoints: endpoints}); err != nil {
			return err
		}
		o, err := s.told.oracle(s.setup, s.env.Families)
		if err != nil {
			return err
		}
		list, err := s.expectAll(o, flows)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].served = true
		}
		if err := s.verify(ctx, o, list); err != nil {
			return err
		}
	}
	return nil
}
