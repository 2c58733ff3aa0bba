package dropin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// notifyingIPTables is an iptables in memory that tells when something has been applied.
type notifyingIPTables struct {
	*dataplane.Fake
	applied chan struct{}
}

func newIPTables() (both [2]*notifyingIPTables) {
	for i, f := range model.Families() {
		both[i] = &notifyingIPTables{Fake: dataplane.NewFake(f), applied: make(chan struct{}, 1)}
	}
	return both
}

func (n *notifyingIPTables) Restore(ctx context.Context, b *dataplane.Batch) error {
	err := n.Fake.Restore(ctx, b)
	select {
	case n.applied <- struct{}{}:
	default:
	}
	return err
}

// waitForIPTables waits until the rules of one family look as they should.
func (r *rig) waitForIPTables(t *testing.T, d *notifyingIPTables, ok func(dump string) bool) {
	t.Helper()
	for !ok(d.Dump()) {
		select {
		case <-d.applied:
		case <-r.ended:
			t.Fatal("the program ended before the rules looked as expected:\n", d.Dump(), r.logged())
		}
	}
}

// assertOrder checks that the jumps that translate destinations were removed before anything else: see
// dataplane.RemoveChains.
func (n *notifyingIPTables) assertOrder(t *testing.T) {
	translates := true
	for _, b := range n.Batches() {
		text := b.String()
		if removes := strings.Contains(text, "-X KUBE-") || strings.Contains(text, "-D POSTROUTING -j KUBE"); removes {
			assert.False(t, translates, "removed while packets still come from PREROUTING:\n%s", text)
		}
		translates = translates && !strings.Contains(text, "-D PREROUTING -m comment --comment \"kubernetes service")
	}
	assert.False(t, translates)
}

// addUpstreamChains makes chains as Kubernetes' own kube-proxy, and the kubelet, have them.
func (r *rig) addUpstreamChains(t *testing.T) {
	for _, d := range r.iptables {
		require.NoError(t, d.RestoreAsSomebodyElse(&dataplane.Batch{Tables: []dataplane.TableBatch{
			{
				Table: dataplane.NAT,
				Chains: []dataplane.Chain{
					{Name: "KUBE-MARK-MASQ", Rules: []string{"-j MARK --set-xmark 0x4000/0x4000"}},
					{Name: "KUBE-SVC-ABC", Rules: []string{"-j KUBE-MARK-MASQ", "-j KUBE-SEP-ABC"}},
					{Name: "KUBE-SEP-ABC"},
					{Name: "KUBE-SERVICES", Rules: []string{"-p tcp -m tcp --dport 80 -j KUBE-SVC-ABC"}},
					{Name: "KUBE-POSTROUTING", Rules: []string{"-j MASQUERADE --random-fully"}},
					{Name: "KUBE-KUBELET-CANARY"},
				},
				Insert: []dataplane.BuiltinRule{
					{Chain: "PREROUTING", Rule: `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`},
					{Chain: "OUTPUT", Rule: "-j KUBE-SERVICES"},
					{Chain: "POSTROUTING", Rule: "-j KUBE-POSTROUTING"}},
			},
			{
				Table:  dataplane.Filter,
				Chains: []dataplane.Chain{{Name: "KUBE-FIREWALL"}, {Name: "KUBE-FORWARD"}},
				Insert: []dataplane.BuiltinRule{{Chain: "INPUT", Rule: "-j KUBE-FIREWALL"},
					{Chain: "FORWARD", Rule: "-j KUBE-FORWARD"}},
			},
		}}))
	}
}

// jumpFrom makes a chain of another program that jumps to others, in tables nat.
func (r *rig) jumpFrom(t *testing.T, chain string, to ...string) {
	t.Helper()
	c := dataplane.Chain{Name: chain}
	for _, name := range to {
		c.Rules = append(c.Rules, "-j "+name)
	}
	for _, d := range r.iptables {
		require.NoError(t, d.RestoreAsSomebodyElse(&dataplane.Batch{Tables: []dataplane.TableBatch{
			{Table: dataplane.NAT, Chains: []dataplane.Chain{c}}}}))
	}
}

func TestWithoutAModeItIsIPTables(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	stop := r.start(t, "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16", "--iptables-masquerade-bit=5")
	r.waitForIPTables(t, r.iptables[0], contains("--to-destination 10.244.1.5:"))
	r.waitForIPTables(t, r.iptables[1], contains("-A PREROUTING"))
	require.NoError(t, stop())
	dump := r.iptables[0].Dump()
	for _, want := range []string{
		"-d 10.96.0.10/32 -p tcp -m tcp --dport 80", // the Service
		"--dport 30080",      // its node port
		"! -s 10.244.0.0/16", // the detection of local traffic
		"0x20/0x20",          // the packet mark
	} {
		assert.Contains(t, dump, want)
	}
	assert.Equal(t, "1", r.file(t, "proc/sys/net/ipv4/conf/all/route_localnet"),
		"node ports on 127.0.0.1 are the default of the flags")
	assert.Empty(t, r.nft.Dump(tableIPv4))
}

func TestWithoutIPTablesOfAFamily(t *testing.T) {
	needModesOfLinux(t)
	rigWith := func(d *notifyingIPTables) *rig {
		r := newRig(t, cluster()...)
		r.machine.iptables = []dataplane.Interface{d}
		return r
	}
	const missing = `this machine has no IPv6 (IPv6: executable file not found in $PATH)`
	t.Run("the other one is served", func(t *testing.T) {
		r := rigWith(newIPTables()[0])
		stop := r.start(t, "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16")
		r.waitForIPTables(t, r.machine.iptables[0].(*notifyingIPTables), contains("--to-destination 10.244.1.5:"))
		require.NoError(t, stop())
		assert.Contains(t, r.logged(), `"family"="IPv6"`)
		assert.Contains(t, r.logged(), `"families"="[IPv4]"`)
	})
	t.Run("it is an error if both are required", func(t *testing.T) {
		err := rigWith(newIPTables()[0]).run("--config=" +
			writeFile(t, "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: "+
				"iptables\nipFamilyPolicy: RequireDualStack\n"))
		assert.EqualError(t, err, "ipFamilyPolicy is RequireDualStack: "+missing)
	})
	t.Run("it is an error if it is the primary one", func(t *testing.T) {
		assert.ErrorContains(t, rigWith(newIPTables()[1]).run("--proxy-mode=iptables"),
			"no support for the primary IP family, IPv4")
	})
	t.Run("it does not matter in mode nftables", func(t *testing.T) {
		r := rigWith(newIPTables()[0])
		r.start(t, arguments...)
		r.waitFor(t, tableIPv6, contains("table"))
	})
}

func TestASwitchOfModesRemovesWhatTheOthersLeft(t *testing.T) {
	needModesOfLinux(t)
	for _, tc := range []struct {
		name, from, to string
	}{
		{"from nftables to iptables", "nftables", "iptables"},
		{"from iptables to nftables", "iptables", "nftables"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, cluster()...)
			inForce := map[string]func(ok func(string) bool){
				"nftables": func(ok func(string) bool) { r.waitFor(t, tableIPv4, ok) },
				"iptables": func(ok func(string) bool) { r.waitForIPTables(t, r.iptables[0], ok) },
			}
			endpoint, gone := contains("10.244.1.5"),
				func(dump string) bool { return !strings.Contains(dump, "10.244.1.5") }
			stop := r.start(t, "--iptables-min-sync-period=0", "--proxy-mode="+tc.from)
			inForce[tc.from](endpoint)
			require.NoError(t, stop())
			r.addUpstreamChains(t)

			stop = r.start(t, "--iptables-min-sync-period=0", "--proxy-mode="+tc.to)
			inForce[tc.to](endpoint)
			inForce[tc.from](gone)
			for _, d := range r.iptables {
				r.waitForIPTables(t, d, func(dump string) bool {
					return !strings.Contains(dump, "KUBE-S") && !strings.Contains(dump, "KUBE-FORWARD")
				})
				d.assertOrder(t)
			}
			require.NoError(t, stop())
			inForce[tc.to](endpoint)
			for _, d := range r.iptables {
				for _, stays := range []string{":KUBE-MARK-MASQ", ":KUBE-KUBELET-CANARY", "-A INPUT -j KUBE-FIREWALL"} {
					assert.Contains(t, d.Dump(), stays)
				}
			}

			require.Equal(t, "1", r.file(t, routeLocalnet))
			require.NoError(t, r.run("--cleanup"))
			assert.Empty(t, r.nft.Dump(tableIPv4))
			assert.NotContains(t, r.iptables[0].Dump(), "10.244.1.5")
			assert.Equal(t, "1", r.file(t, routeLocalnet), "docs/kubeadm.md says that kernel parameters stay")
		})
	}
}

// Chains of kube-proxy by table, of all versions since 1.8, and those that only look like them.
func TestChainsOfUpstream(t *testing.T) {
	const nat, filter, mangle = dataplane.NAT, dataplane.Filter, dataplane.Mangle
	both := []dataplane.Table{nat, filter}
	for name, tables := range map[string][]dataplane.Table{
		// mode iptables
		"KUBE-SERVICES": both, "KUBE-NODEPORTS": both, "KUBE-POSTROUTING": {nat},
		"KUBE-PROXY-CANARY": {nat, filter, mangle},
		"KUBE-SVC-ABC":      {nat}, "KUBE-SVL-ABC": {nat}, "KUBE-SEP-ABC": {nat}, "KUBE-FW-ABC": {nat}, "KUBE-EXT-ABC": {nat},
		"KUBE-XLB-ABC": {nat}, "KUBE-EXTERNAL-SERVICES": {filter}, "KUBE-FORWARD": {filter}, "KUBE-PROXY-FIREWALL": {filter},
		// mode ipvs
		"KUBE-NODE-PORT": both, "KUBE-LOAD-BALANCER": {nat}, "KUBE-SVC-IPSETS": {nat}, "KUBE-FIRE-WALL": {nat},
		"KUBE-FIREWALL":               {nat}, // in table filter it is the kubelet's
		"KUBE-SOURCE-RANGES-FIREWALL": {filter}, "KUBE-IPVS-FILTER": {filter}, "KUBE-IPVS-OUT-FILTER": {filter},
		// mode userspace
		"KUBE-PORTALS-CONTAINER": {nat}, "KUBE-PORTALS-HOST": {nat}, "KUBE-NODEPORT-CONTAINER": {nat},
		"KUBE-NODEPORT-HOST": {nat}, "KUBE-NODEPORT-NON-LOCAL": {filter},
		// of the kubelet, of others, or used by others
		"KUBE-MARK-MASQ": nil, "KUBE-MARK-DROP": nil, "KUBE-IPTABLES-HINT": nil, "KUBE-KUBELET-CANARY": nil,
		"KUBE-HOSTPORTS": nil, "KUBE-HP-ABC": nil, "KUBE-ROUTER-INPUT": nil, "KUBE-": nil, "SERVICES": nil,
	} {
		for _, table := range []dataplane.Table{nat, filter, mangle, "raw"} {
			assert.Equal(t, slices.Contains(tables, table), upstreamChain(table, name), "%s in table %s", name, table)
		}
	}
}

func TestAStartRemovesWhatOldKubeProxiesLeftAroundAChainInUse(t *testing.T) {
	needModesOfLinux(t)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, cluster()...)
			for _, d := range r.iptables {
				require.NoError(t, d.Load(oldKubeProxy))
			}
			r.start(t, "--iptables-min-sync-period=0", "--proxy-mode="+mode)
			r.waitLogged(t, "KUBE-FW-AAAAAAAAAAAAAAAA (from OTHER), KUBE-SERVICES (from OTHER)")
			for _, d := range r.iptables {
				assert.Equal(t, leftOfOldKubeProxy(), aboutKubeProxy(d.Dump()))
			}
			assert.NotContains(t, r.logged(), "Could not clean up")
			assert.Empty(t, r.findUpstream(r.ctx), "an empty chain is no sign of kube-proxy")
		})
	}
}

func TestCleanUpNamesAChainInUseAndRemovesTheRest(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	stop := r.start(t, "--iptables-min-sync-period=0", "--proxy-mode=iptables")
	r.waitForIPTables(t, r.iptables[0], contains("10.244.1.5"))
	r.waitForIPTables(t, r.iptables[1], contains("-A PREROUTING"))
	require.NoError(t, stop())
	r.jumpFrom(t, "OTHER", "KPL-SERVICES")
	for range 2 {
		require.NoError(t, r.run("--cleanup"))
		assert.Equal(t, 1, strings.Count(r.iptables[0].Dump(), ":KPL-"), r.iptables[0].Dump())
		assert.NotContains(t, r.iptables[0].Dump(), "-A KPL-")
	}
	assert.Equal(t, 2, strings.Count(r.logged(), "Chains that are no longer needed were emptied, but not deleted"))
	assert.Contains(t, r.logged(), "IPv4, iptables-nft: table nat: chains of others jump to chains that are left, empty: "+
		"KPL-SERVICES (from OTHER)")
	for _, d := range r.iptables {
		d.FailRestore = func(*dataplane.Batch) error { return errors.New("made to fail") }
	}
	assert.ErrorContains(t, r.run("--cleanup"), "made to fail")
}

// oldKubeProxy is what kube-proxy of Kubernetes 1.23 and a newer one leave behind together, and a chain of another
// program that jumps to two of their chains.
const oldKubeProxy = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
:KUBE-FW-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-XLB-AAAAAAAAAAAAAAAA - [0:0]
:OTHER - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A OTHER -p tcp -j KUBE-FW-AAAAAAAAAAAAAAAA
-A OTHER -p udp -j KUBE-SERVICES
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A KUBE-SERVICES -p tcp -m tcp --dport 80 -j KUBE-FW-AAAAAAAAAAAAAAAA
-A KUBE-FW-AAAAAAAAAAAAAAAA -j KUBE-XLB-AAAAAAAAAAAAAAAA
-A KUBE-FW-AAAAAAAAAAAAAAAA -j KUBE-MARK-DROP
-A KUBE-XLB-AAAAAAAAAAAAAAAA -i lo -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-XLB-AAAAAAAAAAAAAAAA -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m tcp -j DNAT --to-destination :8080
COMMIT
`

// leftOfOldKubeProxy are the lines about kube-proxy's chains that a clean-up leaves of oldKubeProxy.
func leftOfOldKubeProxy() []string {
	return []string{
		":KUBE-FW-AAAAAAAAAAAAAAAA - [0:0]",
		":KUBE-MARK-DROP - [0:0]",
		":KUBE-MARK-MASQ - [0:0]",
		":KUBE-SERVICES - [0:0]",
		"-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
		"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
		"-A OTHER -p tcp -j KUBE-FW-AAAAAAAAAAAAAAAA",
		"-A OTHER -p udp -j KUBE-SERVICES",
	}
}

// aboutKubeProxy returns the lines of a dump about its chains.
func aboutKubeProxy(dump string) (lines []string) {
	for line := range strings.Lines(dump) {
		if strings.Contains(line, "KUBE-") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
