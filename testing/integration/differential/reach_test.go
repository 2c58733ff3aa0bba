package differential

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// TestGeneratorReaches checks that everything that is to be compared happens often enough, according to upstream's
// answers.
func TestGeneratorReaches(t *testing.T) {
	external := func(p portAnswer) bool { return p.ExternallyAccessible && p.ExternalPolicyLocal }
	situations := map[string]func(portKey, portAnswer) bool{
		"a local endpoint is not in the cluster set": func(_ portKey, p portAnswer) bool {
			return p.UsesClusterEndpoints && len(p.ClusterEndpoints) > 0 && len(p.LocalEndpoints) > 0 &&
				!contains(p.ClusterEndpoints, p.LocalEndpoints[0])
		},
		"the cluster set drains": func(_ portKey, p portAnswer) bool { return drains(p.ClusterEndpoints) },
		"only the local set drains": func(_ portKey, p portAnswer) bool {
			return drains(p.LocalEndpoints) &&
				!drains(p.ClusterEndpoints)
		},
		"external traffic finds none here": func(_ portKey, p portAnswer) bool {
			return external(p) && p.HasAnyEndpoints && len(p.LocalEndpoints) == 0
		},
		"internal traffic finds none here": func(_ portKey, p portAnswer) bool {
			return p.InternalPolicyLocal && p.HasAnyEndpoints && len(p.LocalEndpoints) == 0
		},
		"no cluster set, but endpoints": func(_ portKey, p portAnswer) bool {
			return !p.UsesClusterEndpoints &&
				p.HasAnyEndpoints
		},
		"no endpoints":             func(_ portKey, p portAnswer) bool { return !p.HasAnyEndpoints },
		"two numbers for one port": func(_ portKey, p portAnswer) bool { return numbers(p.ClusterEndpoints) > 1 },
		"a ready endpoint that terminates": func(_ portKey, p portAnswer) bool {
			return contains(p.ClusterEndpoints, endpoint{Ready: true, Terminating: true})
		},
		"a UDP port of which nothing is new": func(_ portKey,
			p portAnswer) bool {
			return len(p.ServingUDP) > len(p.ClusterEndpoints)
		},
		"SCTP over IPv6": func(k portKey, p portAnswer) bool {
			return k.Protocol == model.SCTP && k.family == model.IPv6 && p.HasAnyEndpoints
		},
		"a VIP is a source": func(_ portKey, p portAnswer) bool { return vipIsSource(p) },
		"affinity": func(_ portKey, p portAnswer) bool {
			return p.AffinityTimeout > 0 &&
				p.HasAnyEndpoints
		},
		"external addresses of both kinds": func(_ portKey, p portAnswer) bool {
			return len(p.ExternalIPs) > 0 &&
				len(p.LoadBalancerIPs) > 0
		},
	}
	reached := map[string]int{}
	health := 0
	for seed := range uint64(5000) {
		sc := randomScript(testkit.Seeded(seed), false)
		u := newUpstream(sc.setup, allDepartures())
		for _, w := range sc.waves {
			for _, e := range w {
				u.take(e)
			}
			a := u.sync()
			for name, is := range situations {
				for k, p := range a.ports {
					if is(k, p) {
						reached[name]++
						break
					}
				}
			}
			for _, h := range a.health {
				if h.LocalEndpoints > 0 {
					health++
				}
			}
		}
	}
	t.Log(reached)
	for name := range situations {
		require.Greater(t, reached[name], 20, name)
	}
	require.Greater(t, health, 20, "a health check with local endpoints")
}

func drains(list []endpoint) bool { return len(list) > 0 && !list[0].Ready }

// contains reports whether a list has an endpoint or, without a target, one with its conditions.
func contains(list []endpoint, e endpoint) bool {
	for _, o := range list {
		if o == e || !e.Target.IsValid() && o.Ready == e.Ready && o.Terminating == e.Terminating {
			return true
		}
	}
	return false
}

func numbers(list []endpoint) int {
	seen := map[uint16]bool{}
	for _, e := range list {
		seen[e.Target.Port()] = true
	}
	return len(seen)
}

func vipIsSource(p portAnswer) bool {
	for _, r := range p.SourceRanges {
		for _, vip := range p.LoadBalancerIPs {
			if r.Addr() == vip && r.IsSingleIP() {
				return true
			}
		}
	}
	return false
}
