package cases

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

func balanceCases() []Case {
	return []Case{
		{Name: "new connections are spread evenly over the endpoints", Rules: "S21", run: spreadsEvenly},
	}
}

// spreadsEvenly counts connections per endpoint, before and after the number of endpoints changes.
func spreadsEvenly(ctx context.Context, b *bed) error {
	for _, pods := range [][]string{
		{localPod1, localPod2, remotePod1, remotePod2},
		{localPod1, remotePod1, remotePod2},
	} {
		svc := external(service{Endpoints: cluster.At(pods...)})
		if err := b.Put(ctx, svc); err != nil {
			return err
		}
		for _, f := range b.flows(svc, 0, []path{{localPod3, toClusterIP}, {client, toNodePort}}) {
			if err := b.evenly(ctx, f, len(pods)); err != nil {
				return err
			}
		}
	}
	return nil
}

// evenly makes many connections and checks their distribution over the endpoints with Pearson's chi-squared test.
func (b *bed) evenly(ctx context.Context, f network.Attempt, endpoints int) error {
	const connections = 600
	count := map[netip.AddrPort]int{}
	for _, seen := range b.TryAll(ctx, slices.Repeat([]network.Attempt{f}, connections)) {
		if seen.Verdict != oracle.Deliver {
			return fmt.Errorf("flow: %v\nseen: %v\nwant: an answer", f, seen)
		}
		count[seen.Endpoint]++
	}
	expected := float64(connections) / float64(endpoints)
	statistic := expected * float64(endpoints-len(count)) // endpoints that were never reached
	for _, n := range count {
		statistic += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	if bound := chiSquaredBound(endpoints - 1); len(count) > endpoints || statistic > bound {
		return fmt.Errorf("flow: %v\nseen: %d connections went to %d endpoints like this: %v; chi-squared is %.1f\n"+
			"want: %d endpoints with about %.0f each; at random chi-squared is less than %.1f but for once in 10^9",
			f, connections, len(count), count, statistic, endpoints, expected, bound)
	}
	return nil
}

// chiSquaredBound is the value that chi-squared exceeds with probability 10^-9 (Wilson-Hilferty approximation).
func chiSquaredBound(degreesOfFreedom int) float64 {
	const z = 6 // a normal variable exceeds it with probability 10^-9
	k := float64(degreesOfFreedom)
	return k * math.Pow(1-2/(9*k)+z*math.Sqrt(2/(9*k)), 3)
}
