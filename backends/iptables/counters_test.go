package iptables_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestEverythingIsServedWhereTheKernelCannotCount(t *testing.T) {
	const counting, bpf = "-m nfacct", "-m bpf"
	for name, missing := range map[string][]string{
		"no counters":                      {"counters"},
		"no match for them":                {counting},
		"no match for them, and no bpf":    {counting, bpf},
		"no counters, and no match at all": {"counters", counting, bpf},
		"only bpf":                         {bpf},
	} {
		t.Run(name, func(t *testing.T) {
			r, counted := rigWithCounters(t, iptables.Options{})
			for _, fake := range r.fakes {
				if slices.Contains(missing, "counters") {
					fake.FailCounter = func(string) error { return errors.New("no such subsystem") }
				}
				fake.FailRule = func(_ dataplane.Table, _, rule string) error {
					for _, match := range missing {
						if strings.Contains(rule, match) {
							return errors.New("no such match")
						}
					}
					return nil
				}
			}
			r.Set(backendtest.EveryFeature()...)
			for range 2 {
				r.Sync() // with an error if a service port is left out
				for f := range r.fakes {
					dump := r.dump(f)
					assert.Equal(t, !slices.Contains(missing, bpf), strings.Contains(dump, bpf))
					if slices.Equal(missing, []string{bpf}) {
						assert.Contains(t, dump, "--ctstate INVALID -m nfacct --nfacct-name kpl_ct_state_invalid_dropped -j DROP")
					} else {
						assert.NotContains(t, dump, counting)
						assert.Contains(t, dump, "--ctstate INVALID -j DROP")
					}
				}
				r.backend.ForceResync()
			}
			assert.Equal(t, slices.Equal(missing, []string{bpf}), len(counted()) > 0, "what is not counted has no value")
		})
	}
}

// rigWithCounters is a rig whose metrics are registered.
func rigWithCounters(t *testing.T, o iptables.Options) (*rig, func() map[string]float64) {
	reg := prometheus.NewPedanticRegistry()
	o.Metrics = reg
	return newRig(t, o), func() map[string]float64 { return backendtest.Metrics(t, reg, "kubeproxy_iptables_") }
}

func TestRulesComeBackAfterAnotherProcessHasRemovedThemAndTheirCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, counted := rigWithCounters(t, iptables.Options{}.CheckingEvery(time.Second))
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before, values := r.dump(model.IPv4), counted()
		require.Len(t, values, 2)
		require.NoError(t, iptables.CleanUp(t.Context(), iptables.Options{Dataplanes: r.options.Dataplanes}))
		for _, fake := range r.fakes {
			_, err := fake.CountedPackets("kpl_ct_state_invalid_dropped")
			require.Error(t, err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Equal(t, before, r.dump(model.IPv4))
		assert.Equal(t, values, counted())

		// The same with a Sync before the check.
		require.NoError(t, iptables.CleanUp(t.Context(), iptables.Options{Dataplanes: r.options.Dataplanes}))
		r.backend.ForceResync()
		r.Sync()
		assert.Equal(t, before, r.dump(model.IPv4))
		assert.Equal(t, values, counted())
		require.NoError(t, r.backend.Close())
	})
}

func TestAMissingMatchIsTriedAgainInAResync(t *testing.T) {
	r, counted := rigWithCounters(t, iptables.Options{})
	restores := 0
	for _, fake := range r.fakes {
		fake.FailRule = func(_ dataplane.Table, _, rule string) error {
			if strings.Contains(rule, "-m nfacct") {
				restores++
				return errors.New("no such match")
			}
			return nil
		}
	}
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	assert.Empty(t, counted(), "what is not counted has no value")
	restores = 0
	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	r.Sync()
	assert.Zero(t, restores, "it is not tried again with each change")
	r.backend.ForceResync()
	r.Sync()
	assert.Equal(t, len(r.fakes), restores)
	for _, fake := range r.fakes {
		fake.FailRule = nil
	}
	r.backend.ForceResync()
	r.Sync()
	assert.Len(t, counted(), 2)
	assert.Contains(t, r.dump(model.IPv4), "-m nfacct")
}

func TestOneFamilyThatCountsIsEnough(t *testing.T) {
	r, counted := rigWithCounters(t, iptables.Options{})
	r.fakes[model.IPv4].FailCounter = func(string) error { return errors.New("no such subsystem") }
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.fakes[model.IPv6].Count("kpl_ct_state_invalid_dropped", 2)
	assert.EqualValues(t, 2, counted()["ct_state_invalid_dropped_packets_total"])
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.Empty(t, counted())
}
