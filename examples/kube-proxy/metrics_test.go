package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheMetricsOfTheModeAreServed(t *testing.T) {
	for mode, names := range map[string][]string{
		"nftables": {"nftables_sync_failures_total", "nftables_cleanup_failures_total"},
	} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, cluster()...)
			stop := r.start(t, "--proxy-mode="+mode, "--iptables-min-sync-period=0")
			r.waitFor(t, tableIPv4, contains("10.244.1.5"))
			_, body := get(t, r.url(t, "127.0.0.1:10249")+"/metrics")
			for _, name := range names {
				assert.Contains(t, body, "kubeproxy_sync_proxy_rules_"+name+`{ip_family="IPv6"} 0`)
			}
			require.NoError(t, stop())
		})
	}
}
