package iptables_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestTheRulesReadWell(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	fm.Golden(t, "testdata/every-feature-ipv4.save", r.dump(model.IPv4))
	fm.Golden(t, "testdata/every-feature-ipv6.save", r.dump(model.IPv6))
}

func TestTheRulesFollowTheNodeAndTheOptions(t *testing.T) {
	r := newRig(t, iptables.Options{LocalhostNodePorts: false,
		Common: frontend.Common{MasqueradeMark: 1 << 20,
			NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
				netip.MustParsePrefix("198.51.100.7/32")}}}})
	r.Set(backendtest.EveryFeature()...)
	r.Set(fm.Node("n1").IP("192.0.2.10").LocalPods(model.LocalPods{InterfacePrefix: "veth"}).Build())
	r.Sync()
	fm.Golden(t, "testdata/options-ipv4.save", r.dump(model.IPv4))
}

// manyServices returns n services of one port, with a number of endpoints each.
func manyServices(n, endpoints int) []any {
	values := []any{backendtest.Node()}
	for i := range n {
		name := fmt.Sprintf("many/s%d", i)
		values = append(values,
			fm.Service(name).DetectsLocalPods().ClusterIP(fmt.Sprintf("10.96.%d.%d", i/256, i%256)).
				Port("http", 80).Build())
		for j := range endpoints {
			values = append(values,
				fm.Endpoint(name+":http/TCP", fmt.Sprintf("10.244.%d.%d:8080", 2+j+i/256, i%256)).Build())
		}
	}
	return values
}

func TestManyServicesAreATreeOfChains(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(manyServices(100, 1)...)
	r.Sync()
	fm.Golden(t, "testdata/tree-ipv4.save", r.dump(model.IPv4))
}

func TestServicesWithTheSameNumberOfEndpointsAreAGroup(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(manyServices(10, 3)...)
	r.Sync()
	fm.Golden(t, "testdata/group-ipv4.save", r.dump(model.IPv4))
}

func TestAChangeRewritesOneChain(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(manyServices(300, 10)...)
	r.Sync()
	r.Delete(fm.Endpoint("many/s7:http/TCP", "10.244.4.7:8080").Build())
	r.Set(fm.Endpoint("many/s7:http/TCP", "10.244.99.9:8080").Build())
	r.Sync()
	fm.Golden(t, "testdata/one-endpoint-batch.txt", r.batches(model.IPv4))
	assert.Empty(t, r.batches(model.IPv6))
}

func TestASyncWithoutNewsDoesNothing(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Sync()
	assert.Empty(t, r.batches(model.IPv4))
	for _, v := range backendtest.EveryFeature() { // told again, past the model that would not
		switch v := v.(type) {
		case *model.Service:
			r.backend.SetService(v)
		case *model.Endpoint:
			r.backend.SetEndpoint(v)
		}
	}
	r.Sync()
	assert.Empty(t, r.batches(model.IPv4))
}

func TestARestartChangesNothingThatIsRight(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Restart()
	r.Sync()
	assert.Empty(t, r.batches(model.IPv4)+r.batches(model.IPv6))
}

func TestARestartCorrectsWhatIsWrongAndNothingElse(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	require.NoError(t, r.fakes[model.IPv4].RestoreAsSomebodyElse(
		&dataplane.Batch{Tables: []dataplane.TableBatch{{Table: dataplane.NAT,
			Chains: []dataplane.Chain{{Name: "KPL-P-UDP"}, {Name: "KPL-OLD", Rules: []string{"-j RETURN"}},
				{Name: "OTHERS"}},
			Delete: []dataplane.BuiltinRule{{Chain: "OUTPUT",
				Rule: `-m comment --comment "kube-proxy-lib: services" -j KPL-SERVICES`}},
			Insert: []dataplane.BuiltinRule{{Chain: "OUTPUT", Rule: "-j KPL-OLD"},
				{Chain: "OUTPUT", Rule: "-j OTHERS"}}}}}))
	r.Restart()
	r.Delete(model.ServiceName{Namespace: "voip", Name: "sip"})
	r.Sync()
	fm.Golden(t, "testdata/restart-batch.txt", r.batches(model.IPv4))
	assert.Contains(t, r.dump(model.IPv4), "-A OUTPUT -j OTHERS")
}

func TestAServiceIsRefusedOrTranslatedAtAnyTime(t *testing.T) {
	r := newRig(t, iptables.Options{})
	svc := fm.Service("default/gone").DetectsLocalPods().ClusterIP("10.96.0.11").Port("http", 80)
	r.Set(backendtest.Node(), svc.NoEndpoints().Build())
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4), "-j REJECT")
	r.Set(fm.Endpoint("default/gone:http/TCP", "10.244.1.5:8080").Local().Build())
	r.Sync()
	batch := r.batches(model.IPv4)
	assert.Less(t, strings.Index(batch, "*nat"), strings.Index(batch, "*filter"))
	assert.Contains(t, batch, "-j DNAT --to-destination 10.244.1.5:8080")
	assert.NotContains(t, r.dump(model.IPv4), "-j REJECT")
	r.Delete(fm.Endpoint("default/gone:http/TCP", "10.244.1.5:8080").Build())
	r.Sync()
	batch = r.batches(model.IPv4)
	assert.Less(t, strings.Index(batch, "*filter"), strings.Index(batch, "*nat"))
	assert.Contains(t, batch, "-j REJECT")
	assert.NotContains(t, r.dump(model.IPv4), "-j DNAT")
}

func TestCleanUpLeavesTheRulesOfOthers(t *testing.T) {
	r := newRig(t, iptables.Options{})
	others := "*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n" +
		":CNI-HOSTPORT - [0:0]\n-A PREROUTING -j CNI-HOSTPORT\n-A CNI-HOSTPORT -p tcp -j RETURN\nCOMMIT\n"
	require.NoError(t, r.fakes[model.IPv4].Load(others))
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	require.NotEqual(t, others, r.dump(model.IPv4))
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.Equal(t, others, r.dump(model.IPv4))
	assert.Empty(t, r.dump(model.IPv6))
	require.NoError(t, iptables.CleanUp(t.Context(), r.options))
	assert.Equal(t, others, r.dump(model.IPv4))
}

func TestAChainToWhichOthersJumpKeepsNoneOfTheRestFromGoing(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	other := &dataplane.Batch{Tables: []dataplane.TableBatch{{Table: dataplane.NAT, Chains: []dataplane.Chain{
		{Name: "OTHER", Rules: []string{"-j KPL-SERVICES"}}}}}}
	require.NoError(t, r.fakes[model.IPv4].RestoreAsSomebodyElse(other))
	require.EqualError(t, iptables.CleanUp(t.Context(), r.options), "iptables: cleaning up: IPv4, iptables-nft: "+
		"table nat: chains of others jump to chains that are left, empty: KPL-SERVICES (from OTHER)")
	assert.Equal(t, "*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n"+
		":POSTROUTING ACCEPT [0:0]\n:KPL-SERVICES - [0:0]\n:OTHER - [0:0]\n-A OTHER -j KPL-SERVICES\nCOMMIT\n",
		r.dump(model.IPv4))
	assert.Empty(t, r.dump(model.IPv6))
}

// A chain to which others jump cannot be removed. That must not keep later changes from the table.
func TestChainsToWhichOthersJumpKeepNoChangeFromBeingMade(t *testing.T) {
	for _, n := range []int{2, 30} {
		t.Run(fmt.Sprint(n, " chains"), func(t *testing.T) { testChainsToWhichOthersJump(t, n) })
	}
}

func testChainsToWhichOthersJump(t *testing.T, n int) {
	r := newRig(t, iptables.Options{})
	sticky := func(i int) []any {
		name := fmt.Sprint("default/service-", i)
		return []any{fm.Service(name).ClusterIP(fmt.Sprint("10.96.0.", i)).Affinity(time.Hour).Port("http", 80).Build(),
			fm.Endpoint(name+":http/TCP", fmt.Sprintf("10.244.1.%d:80", i)).Build()}
	}
	var gone []any
	for i := range n {
		gone = append(gone, sticky(100+i)...)
	}
	r.Set(gone...)
	r.Sync()
	chain := regexp.MustCompile(`KPL-CLUSTER-\w+`)
	var rules []string
	for _, own := range slices.Compact(slices.Sorted(slices.Values(chain.FindAllString(r.dump(model.IPv4), -1)))) {
		rules = append(rules, "-j "+own)
	}
	require.Len(t, rules, n)
	// jump makes others jump to our chains.
	jump := func(rules []string) {
		require.NoError(t, r.fakes[model.IPv4].RestoreAsSomebodyElse(&dataplane.Batch{Tables: []dataplane.TableBatch{
			{Table: dataplane.NAT, Chains: []dataplane.Chain{{Name: "OTHER", Rules: rules}}}}}))
	}
	jump(rules)
	r.Delete(gone...)
	r.Set(sticky(1)...)
	r.Sync()
	now := r.dump(model.IPv4)
	assert.Contains(t, now, "10.244.1.1:80")
	assert.NotContains(t, now, "10.244.1.100:80")
	assert.NotContains(t, now, fmt.Sprintf("10.244.1.%d:80", 99+n))
	r.resetBatches()
	r.Sync()
	assert.Empty(t, r.batches(model.IPv4), "it is not tried again all the time")

	// A resync tries again, in vain.
	r.backend.ForceResync()
	r.Set(sticky(2)...)
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4), "10.244.1.2:80")

	jump(nil)
	r.backend.ForceResync()
	r.Sync()
	for _, rule := range rules {
		assert.NotContains(t, r.dump(model.IPv4), strings.TrimPrefix(rule, "-j "))
	}
}

func TestNamesAreBoundedAndDoNoHarm(t *testing.T) {
	r := newRig(t, iptables.Options{})
	name := model.ServiceName{Namespace: "a\"b{\n}'", Name: strings.Repeat("ä*long; ", 60)}
	for i, timeout := range []time.Duration{0, time.Hour} {
		n := name
		n.Name += fmt.Sprint(i)
		s := &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
			SessionAffinityTimeout: timeout,
			Ports: []model.ServicePort{{Name: "x\ny", Protocol: model.TCP, Port: 80,
				Routes: model.PerFamily[model.Routes]{IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true})}}}}
		r.Set(s, &model.Endpoint{Port: s.PortName(s.Ports[0]), Sets: model.ClusterSet,
			Target: netip.MustParseAddrPort("10.244.1.1:80")})
	}
	r.Sync() // the fake refuses what iptables-save would not print so
	assert.Equal(t, 3, strings.Count(r.dump(model.IPv4), "--to-destination 10.244.1.1:80"))
}

func TestBadInputIsSkipped(t *testing.T) {
	r := newRig(t, iptables.Options{})
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true})
	s := &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "bad"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Name: "none", Routes: model.PerFamily[model.Routes]{IPv4: routes}},
			{Name: "a", Protocol: model.TCP, Port: 80, Routes: model.PerFamily[model.Routes]{IPv4: routes}},
			{Name: "a", Protocol: model.TCP, Port: 81, Routes: model.PerFamily[model.Routes]{IPv4: routes}}}}
	port := s.PortName(s.Ports[1])
	r.backend.SetNode(nil)
	r.backend.SetService(nil)
	r.backend.SetEndpoint(nil)
	r.backend.SetService(s)
	r.backend.SetEndpoint(&model.Endpoint{Port: port, Sets: model.ClusterSet,
		Target: netip.MustParseAddrPort("10.244.1.1:0")})
	r.backend.SetEndpoint(&model.Endpoint{Port: port, Sets: model.ClusterSet,
		Target: netip.MustParseAddrPort("10.244.1.2:80")})
	orphan := port
	orphan.Service.Name = "not-set"
	r.backend.SetEndpoint(&model.Endpoint{Port: orphan, Sets: model.ClusterSet,
		Target: netip.MustParseAddrPort("10.244.1.3:80")})
	require.NoError(t, r.backend.Sync(t.Context()))
	dump := r.dump(model.IPv4)
	assert.Contains(t, dump, "10.244.1.2:80")
	assert.NotContains(t, dump, "10.244.1.1")
	assert.NotContains(t, dump, "10.244.1.3")
	assert.NotContains(t, dump, "dport 81")
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]iptables.Options{
		"masqueradeMark":    {Common: frontend.Common{MasqueradeMark: 3}},
		"nodePortAddresses": {Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}}}},
		"families":          {Common: frontend.Common{Families: []model.Family{model.IPv4, model.IPv4}}},
		"dataplanes": {Dataplanes: []dataplane.Interface{dataplane.NewFake(model.IPv4),
			dataplane.NewFake(model.IPv4)}},
	} {
		_, err := iptables.New(t.Context(), o)
		require.ErrorContains(t, err, name)
	}
}

func TestLocalhostNodePortsOpenLoopbackAddressesToTheNodeAlone(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "proc/sys/net/ipv4/conf/all/route_localnet")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte("0\n"), 0o644))
	r := newRig(t, iptables.Options{LocalhostNodePorts: true,
		Common: frontend.Common{Sysctls: sysctl.Root(root)}})
	read := func() string {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}
	r.Set(backendtest.EveryFeature()...)
	assert.Equal(t, "0\n", read(), "nothing changes before Sync")
	r.Sync()
	assert.Equal(t, "1\n", read())
	assert.Contains(t, r.dump(model.IPv4), "-A KPL-LOCALNET ! -s 127.0.0.0/8 -d 127.0.0.0/8")
	assert.Contains(t, onlyLines(r.dump(model.IPv4), "-A KPL-POSTROUTING"),
		"-A KPL-POSTROUTING -m mark --mark 0x4000/0x4000 -m conntrack --ctorigdst 127.0.0.0/8 -m nfacct --nfacct-name "+
			"kpl_localhost_nps_accepted\n-A KPL-POSTROUTING -m bpf", "what reaches itself is counted, too")
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		assert.Contains(t, r.dump(model.IPv4),
			"-A "+chain+` -m comment --comment "kube-proxy-lib: node ports on loopback addresses" -j KPL-LOCALNET`)
	}
	assert.NotContains(t, r.dump(model.IPv4), "-d 127.0.0.0/8 -j RETURN")
	assert.Contains(t, r.dump(model.IPv6), "-A KPL-NODEPORTS -d ::1/128 -j RETURN")
}

// A process that may not set the parameter serves everything else; it says so once, and asks again only at a resync.
func TestWithoutRouteLocalnetEverythingElseIsServed(t *testing.T) {
	const leftAlone = "-A KPL-NODEPORTS -d 127.0.0.0/8 -j RETURN"
	root, reg := t.TempDir(), prometheus.NewRegistry()
	file := filepath.Join(root, "proc/sys/net/ipv4/conf/all/route_localnet")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	r := newRig(t, iptables.Options{LocalhostNodePorts: true,
		Common: frontend.Common{Metrics: reg, Sysctls: sysctl.Root(root)}})
	var log strings.Builder
	ctx := klog.NewContext(t.Context(),
		funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
	r.Set(backendtest.EveryFeature()...)
	require.NoError(t, r.Wave(ctx), "so that nobody tries again and again, and the node stays healthy")
	dump := r.dump(model.IPv4)
	assert.Contains(t, dump, "10.96.0.10")
	assert.Contains(t, dump, "-A KPL-SERVICES -m addrtype --dst-type LOCAL -j KPL-NODEPORTS")
	assert.Contains(t, dump, leftAlone)
	assert.NotContains(t, dump, "KPL-LOCALNET")
	failures, _ := r.failures(reg, model.IPv4)
	assert.Zero(t, failures)

	for range 3 {
		r.backend.ForceResync()
		require.NoError(t, r.backend.Sync(ctx))
	}
	assert.Equal(t, 1, strings.Count(log.String(),
		"sysctl net/ipv4/conf/all/route_localnet has no value and cannot be set to 1"), log.String())

	// Somebody else sets it.
	require.NoError(t, os.WriteFile(file, []byte("1\n"), 0o444))
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4), leftAlone, "it is not checked before the next resync")
	r.backend.ForceResync()
	r.Sync()
	assert.NotContains(t, r.dump(model.IPv4), leftAlone)
	assert.Contains(t, r.dump(model.IPv4),
		"-A INPUT -m comment --comment \"kube-proxy-lib: node ports on loopback addresses\" -j KPL-LOCALNET")

	require.NoError(t, os.Remove(file))
	r.backend.ForceResync()
	require.NoError(t, r.backend.Sync(ctx))
	assert.Contains(t, r.dump(model.IPv4), "-A KPL-LOCALNET ! -s 127.0.0.0/8",
		"loopback addresses may still be open: they stay closed to others")
	assert.Equal(t, 2, strings.Count(log.String(), "cannot be set to 1"), "it is news again")
}

func TestRouteLocalnetIsLeftAloneWhereItIsNotNeeded(t *testing.T) {
	for name, o := range map[string]iptables.Options{
		"not asked for": {},
		"node ports on other ones": {LocalhostNodePorts: true,
			Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{Primary: true}}},
		"other addresses are answered": {LocalhostNodePorts: true,
			Common: frontend.Common{
				NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, "proc/sys/net/ipv4/conf/all/route_localnet")
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte("0\n"), 0o644))
			o.Sysctls = sysctl.Root(root)
			r := newRig(t, o)
			r.Set(backendtest.EveryFeature()...)
			r.Sync()
			value, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, "0\n", string(value))
			assert.NotContains(t, r.dump(model.IPv4), "KPL-LOCALNET")
		})
	}
}

func TestInvalidPacketsAreDroppedUnlessTheKernelIsLiberal(t *testing.T) {
	for value, drops := range map[string]bool{"0\n": true, "1\n": false} {
		root := t.TempDir()
		file := filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(value), 0o644))
		r := newRig(t, iptables.Options{Common: frontend.Common{Sysctls: sysctl.Root(root)}})
		r.Set(backendtest.Node())
		r.Sync()
		assert.Equal(t, drops, strings.Contains(r.dump(model.IPv4),
			"--ctstate INVALID -m nfacct --nfacct-name kpl_ct_state_invalid_dropped -j DROP"), "liberal: %s", value)
	}
}

func TestNodePortAddressesAddUp(t *testing.T) {
	choice, err := nodeaddr.Parse([]string{"localhost", "198.51.100.0/24", "192.0.2.10/32", "primary"})
	require.NoError(t, err)
	r := newRig(t, iptables.Options{Common: frontend.Common{NodePortAddresses: choice}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	const jump = "-A KPL-SERVICES -d %s -m addrtype --dst-type LOCAL -j KPL-NODEPORTS"
	for _, cidr := range []string{"127.0.0.0/8", "198.51.100.0/24", "192.0.2.10/32"} {
		assert.Equal(t, 1, strings.Count(r.dump(model.IPv4), fmt.Sprintf(jump, cidr)), "%s, once", cidr)
	}
	assert.Equal(t, 3, strings.Count(r.dump(model.IPv4), "LOCAL -j KPL-NODEPORTS"))
	assert.Contains(t, r.dump(model.IPv6), fmt.Sprintf(jump, "::1/128"))
	assert.NotContains(t, r.dump(model.IPv6), "-A KPL-SERVICES -m addrtype --dst-type LOCAL")
}

func TestNodePortsAreServedOnThePrimaryAddressAlone(t *testing.T) {
	r := newRig(t, iptables.Options{Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{Primary: true}}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4),
		"-A KPL-SERVICES -d 192.0.2.10/32 -m addrtype --dst-type LOCAL -j KPL-NODEPORTS")
	r.Set(fm.Node("n1").IP("192.0.2.11").Build())
	r.Sync()
	assert.Contains(t, r.dump(model.IPv4),
		"-A KPL-SERVICES -d 192.0.2.11/32 -m addrtype --dst-type LOCAL -j KPL-NODEPORTS")
	assert.NotContains(t, r.dump(model.IPv4), "192.0.2.10")
}

// A hundred services whose node ports alone are served by all endpoints.
func TestManyNodePortsThatLeadElsewhereThanTheClusterIP(t *testing.T) {
	for _, protocol := range []model.Protocol{model.TCP, model.SCTP} {
		r := newRig(t, iptables.Options{})
		r.Set(backendtest.Node())
		for i := range 200 {
			b := fm.Service(fmt.Sprint("default/n", i)).DetectsLocalPods().
				ClusterIP(fmt.Sprint("10.96.3.", i)).InternalLocal()
			if protocol == model.TCP {
				b.Port("p", 80)
			} else {
				b.SCTPPort("p", 80)
			}
			r.Set(b.NodePort(uint16(30304 + i)).Build())
			for j := range 10 {
				r.Set(fm.Endpoint(fmt.Sprintf("default/n%d:p/%v", i, protocol),
					fmt.Sprintf("10.244.%d.%d:8080", 2+j, i)).Build())
			}
		}
		r.Sync()
		assert.Contains(t, r.dump(model.IPv4), "--to-destination 10.244.11.199:8080")
	}
}

// A user may configure any address range or interface as the detector of local pods (S30).
func TestUnusualDetectorsOfLocalPods(t *testing.T) {
	for name, pods := range map[string]model.LocalPods{
		"all addresses": {CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
		"bridge br-j":   {Bridge: "br-j"},
		"prefix x-g":    {InterfacePrefix: "x-g"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, iptables.Options{})
			r.Set(backendtest.EveryFeature()...)
			node := backendtest.Node()
			node.LocalPods = pods
			r.Set(node)
			r.Sync()
			assert.Contains(t, r.dump(model.IPv4), "shop/local")
			r.Restart()
			r.Sync()
			assert.Empty(t, r.batches(model.IPv4), "what is active reads as it was written")
		})
	}
}
