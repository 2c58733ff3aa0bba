package iptables_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A node that has never used iptables-legacy must not begin to when mode iptables is cleaned up.
func TestCleanUpMakesNoTablesOfIPTablesLegacy(t *testing.T) {
	n := testns.New(t)
	need.Program(t, "iptables-legacy")
	n.Do(func() error {
		if err := iptables.CleanUp(t.Context(), iptables.Options{}); err != nil {
			return err
		}
		for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
			tables, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			assert.Empty(t, string(tables), file)
		}
		return nil
	})
}
