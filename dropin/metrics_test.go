package dropin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheMetricsOfTheModeAreServed(t *testing.T) {
	needModesOfLinux(t)
	for mode, tc := range map[string]struct {
		inForce func(*rig, *testing.T)
		metrics []string
	}{
		"nftables": {
			func(r *rig, t *testing.T) { r.waitFor(t, tableIPv4, contains("10.244.1.5")) },
			[]string{`nftables_sync_failures_total{ip_family="IPv6"} 0`,
				`nftables_cleanup_failures_total{ip_family="IPv6"} 0`},
		},
		"iptables": {
			func(r *rig, t *testing.T) { r.waitForIPTables(t, r.iptables[0], contains("10.244.1.5")) },
			[]string{`iptables_restore_failures_total{ip_family="IPv6"} 0`,
				`iptables_partial_restore_failures_total{ip_family="IPv6"} 0`,
				`iptables_total{ip_family="IPv4",table="nat"} `, `iptables_last{ip_family="IPv4",table="filter"} `},
		},
		"ipvs": {
			func(r *rig, t *testing.T) {
				require.Eventually(t, func() bool { return strings.Contains(r.ipvs.Dump(), "10.244.1.5") }, time.Minute,
					time.Millisecond)
			},
			[]string{`nftables_sync_failures_total{ip_family="IPv6"} 0`,
				`ipvs_request_failures_total{ip_family="IPv4"} 0`,
				`ipvs_virtual_servers{ip_family="IPv4"} `},
		},
	} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, cluster()...)
			stop := r.start(t, "--proxy-mode="+mode, "--iptables-min-sync-period=0")
			tc.inForce(r, t)
			url := r.url(t, "127.0.0.1:10249") + "/metrics"
			body := ""
			require.Eventually(t, func() bool { // the gauges are set after the rules
				_, body = get(t, url)
				return mode != "iptables" || strings.Contains(body, "kubeproxy_sync_proxy_rules_iptables_total{")
			}, time.Minute, time.Millisecond)
			for _, m := range tc.metrics {
				assert.Contains(t, body, "kubeproxy_sync_proxy_rules_"+m)
			}
			require.NoError(t, stop())
		})
	}
}
