package iptables_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A node that has never used iptables-legacy must not begin to when mode iptables is cleaned up.
func TestCleanUpMakesNoTablesOfIPTablesLegacy(t *testing.T) {
	n := testns.New(t)
	needPrograms(t, dataplane.Legacy)
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

func TestTheProgramsRefuseAnUnknownProtocol(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		testns.Enter(t)
		leavesOutUnknownProtocol(t, newKernelRig(t, v))
	})
}

// A rule of nft's own in one of iptables' tables: iptables-save gives up, the rest goes on.
func TestARuleOfNftInTableNATHoldsUpNothing(t *testing.T) {
	needPrograms(t, dataplane.NFT)
	iptablesProgram, nft := need.Program(t, "iptables-nft"), need.Program(t, "nft")
	testns.Enter(t)
	run := func(cmd *exec.Cmd) string {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	run(exec.Command(iptablesProgram, "-t", "nat", "-A", "POSTROUTING", "-d", "203.0.113.99", "-j", "ACCEPT"))
	run(exec.Command(nft, "add", "rule", "ip", "nat", "POSTROUTING", "oifname", "eth0", "masquerade"))
	for range 2 { // the second time everything is there
		r := newKernelRig(t, dataplane.NFT)
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
		r.Sync()
		listed := run(exec.Command(nft, "list", "table", "ip", "nat"))
		assert.Contains(t, listed, "10.244.3.5:8080")
		assert.Contains(t, listed, "oifname \"eth0\" masquerade")
		assert.Equal(t, 2, strings.Count(listed, "jump KPL-SERVICES"), listed)
		require.NoError(t, r.backend.Close())
	}
}
