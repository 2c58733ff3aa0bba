package nft_test

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// What this package would never write into its table may have been written there by hand. A resync takes it out again.
func TestAResyncRemovesWhatNobodyHereWouldWrite(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	for name, harm := range map[string]struct{ command, trace string }{
		"the verdict of all addresses":  {"add element ip kube-proxy-lib service-ips { * : drop }", "*"},
		"all addresses are cluster IPs": {"add element ip kube-proxy-lib cluster-ips { * }", "*"},
		"an endpoint for all":           {"add element ip kube-proxy-lib endpoints { * : 1.2.3.4 . 80 }", "*"},
		"sources that no list has": {
			"insert rule ip kube-proxy-lib sources-x2cpw7vfhrw77bkh ip saddr 192.0.2.99 return", "192.0.2.99"},
		"a set of all sources": {
			"add set ip kube-proxy-lib ranges-x { type ipv4_addr; flags interval; elements = { * }; }", "ranges-x"},
		"everything that reaches itself": {"add element ip kube-proxy-lib hairpin { * }", "*"},
		"a table that sleeps":            {"add table ip kube-proxy-lib { flags dormant; }", "dormant"},
		"a chain whose policy is not to pass": {
			"add chain ip kube-proxy-lib nat-prerouting { policy drop; }", "policy drop"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.EnterNamespace(t)
			r := newKernelRig(t, nft.Options{}, false)
			r.Set(backendtest.EveryFeature()...)
			r.Sync()
			run := func(args ...string) string {
				out, err := exec.CommandContext(t.Context(), nftProgram, args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			list := func() string { return run("list", "table", "ip", "kube-proxy-lib") }
			run(harm.command)
			require.Contains(t, list(), harm.trace)
			r.backend.ForceResync()
			r.Sync()
			assert.NotContains(t, list(), harm.trace)
			assert.Contains(t, list(), "10.96.0.10 . tcp . 80")
		})
	}
}

// A process that dies between the two transactions of a resize leaves the smaller map behind, with the name that the
// next larger one will get.
func TestAMapThatWasLeftBehindIsNotTakenForABiggerOne(t *testing.T) {
	testkit.EnterNamespace(t)
	r := newKernelRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}}, false)
	endpoints := func(n int) {
		r.Set(fm.Node("n1").IP("192.0.2.10").Build(), fm.Service("a/b").ClusterIP("10.96.0.1").Port("p", 80).Build())
		ip := netip.MustParseAddr("10.128.0.0")
		for range n {
			r.Set(fm.Endpoint("a/b:p/TCP", netip.AddrPortFrom(ip, 5060).String()).Build())
			ip = ip.Next()
		}
	}
	endpoints(10)
	r.Sync()
	endpoints(17000) // more than the first map has room for
	r.Sync()

	d, err := dataplane.NewNetlink()
	require.NoError(t, err)
	defer d.Close()
	key := dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName}
	table, err := d.ReadTable(t.Context(), key, nil)
	require.NoError(t, err)
	require.Contains(t, table.Sets, "endpoints-2")
	require.NotContains(t, table.Sets, "endpoints")
	left := &dataplane.Set{Name: "endpoints", Size: 16 << 10,
		Key: []dataplane.Field{dataplane.DestinationAddr, dataplane.Protocol, dataplane.DestinationPort,
			dataplane.Random},
		Value: []dataplane.Field{dataplane.DestinationAddr, dataplane.DestinationPort}}
	tx := dataplane.NewTransaction(key)
	tx.AddSet(left)
	slot := dataplane.AppendAddr(nil, netip.MustParseAddr("10.96.0.1"))
	slot = dataplane.AppendPort(dataplane.AppendProtocol(slot, model.TCP), 80)
	to := dataplane.AppendPort(dataplane.AppendAddr(nil, netip.MustParseAddr("10.128.0.0")), 5060)
	tx.AddElements(left, dataplane.Element{Key: string(binary.NativeEndian.AppendUint32(slot, 0)), Value: string(to)})
	require.NoError(t, d.Apply(t.Context(), tx))

	r.Restart()
	endpoints(66000) // and now more than the second one has
	r.Sync()
	r.backend.ForceResync()
	r.Sync()
}
