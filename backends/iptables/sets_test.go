package iptables_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// bigEndpoint is an endpoint of a service with many.
func bigEndpoint(i int) *model.Endpoint {
	return fm.Endpoint("big/one:http/TCP", fmt.Sprintf("10.244.%d.%d:8080", 2+i/250, 1+i%250)).Build()
}

func bigService(endpoints int) []any {
	values := []any{backendtest.Node(),
		fm.Service("big/one").DetectsLocalPods().ClusterIP("10.96.0.1").Port("http", 80).Build()}
	for i := range endpoints {
		values = append(values, bigEndpoint(i))
	}
	return values
}

// shares returns the share of new connections that each endpoint gets in a chain.
func shares(t *testing.T, w *walker, chain string, share float64, to map[string]float64) {
	for _, rule := range w.chains["nat "+chain] {
		taken := share
		for i, word := range rule {
			switch word {
			case "--probability":
				p, err := strconv.ParseFloat(rule[i+1], 64)
				require.NoError(t, err)
				taken *= p
			case "--to-destination":
				to[rule[i+1]] += taken
			case "-g":
				shares(t, w, rule[i+1], taken, to)
			}
		}
		share -= taken
	}
}

func TestEndpointsOfBigSetsHaveEqualShares(t *testing.T) {
	for _, n := range []int{17, 128, 129, 256, 300, 1000} {
		r := newRig(t, iptables.Options{})
		r.Set(bigService(n)...)
		r.Sync()
		w, got := newWalker(t, r.dump(model.IPv4), nil), map[string]float64{}
		chain := ""
		for _, rule := range w.chains["nat KPL-P-TCP"] {
			chain = rule[len(rule)-1]
		}
		shares(t, w, chain, 1, got)
		require.Len(t, got, n)
		for endpoint, share := range got {
			require.InDelta(t, 1/float64(n), share, 1e-8, endpoint) // iptables-save prints eleven digits
		}
	}
}

func TestAChangeOfABigSetRewritesAPartOfIt(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(bigService(1000)...)
	r.Sync()
	before := r.dump(model.IPv4)
	for name, tc := range map[string]struct {
		change, back  func()
		chains, rules int // at most
	}{
		"an endpoint is replaced": {
			func() { r.Delete(bigEndpoint(500)); r.Set(bigEndpoint(2000)) },
			func() { r.Delete(bigEndpoint(2000)); r.Set(bigEndpoint(500)) }, 1, 128},
		"one comes": {
			func() { r.Set(bigEndpoint(2000)) },
			func() { r.Delete(bigEndpoint(2000)) }, 2, 128 + 8},
	} {
		t.Run(name, func(t *testing.T) {
			for _, change := range []func(){tc.change, tc.back} {
				change()
				r.Sync()
				batches := r.fakes[model.IPv4].Batches()
				require.Len(t, batches, 1)
				rules := 0
				for _, table := range batches[0].Tables {
					for _, c := range table.Chains {
						rules += len(c.Rules)
					}
					assert.LessOrEqual(t, len(table.Chains), tc.chains)
				}
				assert.LessOrEqual(t, rules, tc.rules)
			}
			assert.Equal(t, before, r.dump(model.IPv4))
		})
	}
}

// Sets become big and small again, and get and lose affinity, with nothing left over.
func TestTheChainsOfASetFollowItsSize(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(bigService(0)...)
	have, want := 0, map[int]string{}
	for _, n := range []int{1, 16, 17, 128, 129, 300, 129, 128, 17, 16, 1, 300, 1} {
		for ; have < n; have++ {
			r.Set(bigEndpoint(have))
		}
		for ; have > n; have-- {
			r.Delete(bigEndpoint(have - 1))
		}
		r.Sync()
		dump := r.dump(model.IPv4)
		require.Equal(t, n, strings.Count(dump, "-j DNAT"))
		if want[n] == "" {
			want[n] = dump
		}
		require.Equal(t, want[n], dump, "%d endpoints", n)
	}
	for range 299 {
		r.Set(bigEndpoint(have))
		have++
	}
	r.Sync()
	require.Equal(t, want[300], r.dump(model.IPv4))
	affinity := func(d time.Duration) {
		s := *fm.Service("big/one").DetectsLocalPods().ClusterIP("10.96.0.1").Port("http", 80).Build()
		s.SessionAffinityTimeout = d
		r.Set(&s)
		r.Sync()
	}
	affinity(time.Hour)
	assert.Equal(t, 600, strings.Count(r.dump(model.IPv4), "-m recent"))
	assert.NotContains(t, r.dump(model.IPv4), "KPL-C0-")
	affinity(2 * time.Hour)
	assert.Equal(t, 300, strings.Count(r.dump(model.IPv4), "--seconds 7200"))
	affinity(0)
	require.Equal(t, want[300], r.dump(model.IPv4))
}
