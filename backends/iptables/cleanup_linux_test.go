package iptables_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A node that has never used iptables-legacy must not begin to when mode iptables is cleaned up.
func TestCleanUpMakesNoTablesOfIPTablesLegacy(t *testing.T) {
	n := testkit.NewNamespace(t)
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

func TestSomebodyElseFindsNothingOfOursAfterCleanUp(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		testkit.EnterNamespace(t)
		other, err := somebodyElse(model.IPv4, v)
		require.NoError(t, err)
		rules := func() string {
			text, err := dump(v, model.Families())
			require.NoError(t, err)
			return text
		}
		require.NoError(t, other.NewChain("nat", "OTHER"))
		require.NoError(t, other.Append("nat", "PREROUTING", "-p", "tcp", "-j", "OTHER"))
		before := rules()
		require.Equal(t, "IPv4 nat -A PREROUTING -p tcp -j OTHER\n", before)

		r := newKernelRig(t, v)
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		for _, jump := range []struct{ table, chain, match, to string }{
			{"nat", "PREROUTING", "services", "KPL-SERVICES"}, {"nat", "OUTPUT", "services", "KPL-SERVICES"},
			{"filter", "FORWARD", "services", "KPL-FORWARD"},
		} {
			exists, err := other.Exists(jump.table, jump.chain, "-m", "comment", "--comment",
				"kube-proxy-lib: "+jump.match, "-j", jump.to)
			require.NoError(t, err)
			assert.True(t, exists, "%v", jump)
		}
		chains, err := other.ListChains("nat")
		require.NoError(t, err)
		assert.Contains(t, chains, "KPL-POSTROUTING")

		// A change by another program: rules that are no longer as we left them go as well.
		require.NoError(t, other.ClearChain("nat", "KPL-SERVICES"))
		require.NoError(t, other.Insert("nat", "OUTPUT", 1, "-p", "udp", "-j", "KPL-SERVICES"))
		require.NoError(t, other.NewChain("filter", "KPL-OLD"))
		require.NoError(t, iptables.CleanUp(t.Context(), iptables.Options{}.Of(v)))
		assert.Equal(t, before, rules())
	})
}

func TestTheProgramsRefuseAnUnknownProtocol(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		testkit.EnterNamespace(t)
		leavesOutUnknownProtocol(t, newKernelRig(t, v))
	})
}

// A rule of nft's own in one of iptables' tables: iptables-save gives up, the rest goes on.
func TestARuleOfNftInTableNATHoldsUpNothing(t *testing.T) {
	needPrograms(t, dataplane.NFT)
	nft := need.Program(t, "nft")
	testkit.EnterNamespace(t)
	run := func(cmd *exec.Cmd) string {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	other, err := somebodyElse(model.IPv4, dataplane.NFT)
	require.NoError(t, err)
	require.NoError(t, other.Append("nat", "POSTROUTING", "-d", "203.0.113.99", "-j", "ACCEPT"))
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
