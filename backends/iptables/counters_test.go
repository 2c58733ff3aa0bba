package iptables_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
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
			reg := prometheus.NewPedanticRegistry()
			r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
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
			_, counts := backendtest.Metrics(t, reg, "kubeproxy_iptables_")["ct_state_invalid_dropped_packets_total"]
			assert.Equal(t, !slices.Contains(missing, "counters"), counts, "a metric without a counter has no value")
		})
	}
}
