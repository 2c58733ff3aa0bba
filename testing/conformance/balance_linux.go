package conformance

import (
	"context"
	"fmt"
	"math"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

func balanceCases() []testCase {
	return []testCase{
		{name: "new connections are spread evenly over the endpoints", rules: "S21", run: spreadsEvenly},
	}
}

// spreadsEvenly counts who answers, before and after the number of endpoints changes.
func spreadsEvenly(ctx context.Context, s *session) error {
	for _, pods := range [][]string{
		{localPod1, localPod2, remotePod1, remotePod2},
		{localPod1, remotePod1, remotePod2},
	} {
		svc := external(service{endpoints: at(pods...)})
		if err := s.put(ctx, svc); err != nil {
			return err
		}
		for _, from := range []struct {
			place string
			to    destination
		}{{localPod3, toClusterIP}, {client, toNodePort}} {
			for _, f := range s.env.Families {
				for port := range svc.withDefaults(0).ports {
					if err := s.evenly(ctx, svc.withDefaults(0), port, placeNamed(from.place), from.to, f,
						len(pods)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// evenly makes many connections and looks at how they are spread, with Pearson's chi-squared test.
func (s *session) evenly(ctx context.Context, svc service, port int, from place, to destination, f model.Family,
	endpoints int) error {
	const connections = 600
	one := attempt{flow: flow{from: from, Flow: oracle.Flow{
		From: from.kind, Source: from.addr(f), Destination: to.resolve(svc, port, f),
		Protocol: svc.ports[port].protocol}}}
	batch := make([]attempt, connections)
	for i := range batch {
		batch[i] = one
	}
	count := map[netip.AddrPort]int{}
	for _, seen := range s.n.tryAll(ctx, batch, s.patience) {
		if seen.Verdict != oracle.Deliver {
			return fmt.Errorf("flow: %v\nseen: %v\nwant: an answer", one.flow, seen)
		}
		count[seen.Endpoint]++
	}
	expected := float64(connections) / float64(endpoints)
	statistic := expected * float64(endpoints-len(count)) // those that were never reached
	for _, n := range count {
		statistic += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	if bound := chiSquaredBound(endpoints - 1); len(count) > endpoints || statistic > bound {
		return fmt.Errorf("flow: %v\nseen: %d connections went to %d endpoints like this: %v; chi-squared is %.1f\nwant: %d endpoints with about %.0f each; at random chi-squared is less than %.1f but for once in 10^9",
			one.flow, connections, len(count), count, statistic, endpoints, expected, bound)
	}
	return nil
}

// chiSquaredBound is what chi-squared exceeds once in 10^9, by the approximation of Wilson and Hilferty.
func chiSquaredBound(degreesOfFreedom int) float64 {
	const z = 6 // the normal distribution exceeds it once in 10^9
	k := float64(degreesOfFreedom)
	return k * math.Pow(1-2/(9*k)+z*math.Sqrt(2/(9*k)), 3)
}
