package dropin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func cluster() []runtime.Object {
	return []runtime.Object{
		kube.Node("n1").InternalIP("192.0.2.1", "2001:db8::1").PodCIDR("10.244.1.0/24").Build(),
		kube.ServiceCIDR("kubernetes", "10.96.0.0/12"),
		kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).Build(),
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build(),
	}
}

func TestObjectsBecomeRulesThatStayInTheEnd(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	watching := r.watches("endpointslices")
	stop := r.start(t, arguments...)
	r.waitFor(t, tableIPv4, contains("10.244.1.5"))

	<-watching
	_, err := r.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(),
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.6").OnNode("n1").Build(),
		metav1.UpdateOptions{})
	require.NoError(t, err)
	r.waitFor(t, tableIPv4, func(dump string) bool {
		return strings.Contains(dump, "10.244.1.6") && !strings.Contains(dump, "10.244.1.5")
	})

	var status struct {
		Status map[string]struct{ LastUpdated time.Time }
	}
	_, body := get(t, r.url(t, "0.0.0.0:10256")+"/livez")
	require.NoError(t, json.Unmarshal([]byte(body), &status))
	assert.NotZero(t, status.Status["IPv4"].LastUpdated, "of the wave before this one")

	require.NoError(t, stop())
	dump := r.nft.Dump(tableIPv4)
	for _, want := range []string{
		"10.96.0.10 . tcp . 80",     // the Service
		"tcp . 30080",               // its node port ...
		"192.0.2.1",                 // ... on the node's own IP, the default of mode nftables
		"ip saddr != 10.244.0.0/16", // the detection of local traffic
		"0x00004000",                // the packet mark
		"10.96.0.0/12",              // the ServiceCIDR
	} {
		assert.Contains(t, dump, want)
	}
	assert.NotEmpty(t, r.nft.Dump(tableIPv6))
	assert.Contains(t, r.logged(), `"mode"="nftables"`)
	assert.Equal(t, "-999", r.file(t, "proc/self/oom_score_adj"))
	assert.EqualValues(t, 25, r.leastGCPercent.Load(), "during the first Sync")
	assert.EqualValues(t, 50, r.gcPercent.Load())
	assert.NotEqual(t, "1", r.file(t, "proc/sys/net/netfilter/nf_conntrack_max"))
}

func TestTheConfiguredValuesReachTheBackend(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	r.start(t, "--config="+writeFile(t, `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: nftables
nftables: {masqueradeBit: 3}
minSyncPeriod: 0s
nodeIPOverride: [192.0.2.99]
ipFamilyPolicy: SingleStack
detectLocalMode: NodeCIDR
`))
	r.waitFor(t, tableIPv4, contains("10.244.1.5"))
	dump := r.nft.Dump(tableIPv4)
	assert.Contains(t, dump, "ip saddr != 10.244.1.0/24", "the node's podCIDR")
	assert.Contains(t, dump, "192.0.2.99", "node ports are served on the IP that overrides the node's")
	assert.Contains(t, dump, "0x00000008", "the packet mark")
	assert.Empty(t, r.nft.Dump(tableIPv6))
}

func TestWithoutIPv6InTheKernelThereIsIPv4Only(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	_, err := r.machine.root.SetInt("net/ipv6/conf/all/disable_ipv6", 1)
	require.NoError(t, err)
	watching := r.watches("endpointslices")
	stop := r.start(t, arguments...)
	r.waitFor(t, tableIPv4, contains("10.244.1.5"))
	<-watching
	require.NoError(t, r.client.Tracker().Delete(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		"default", cluster()[3].(*discoveryv1.EndpointSlice).Name))
	r.waitFor(t, tableIPv4, func(dump string) bool { return !strings.Contains(dump, "10.244.1.5") })
	_, body := get(t, r.url(t, "0.0.0.0:10256")+"/livez")
	assert.Contains(t, body, "IPv4")
	assert.NotContains(t, body, "IPv6")
	require.NoError(t, stop())
	assert.Empty(t, r.nft.Dump(tableIPv6))
}

func TestAnotherModeIsAClearError(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	assert.ErrorContains(t, r.run("--proxy-mode=kernelspace"), "kernelspace")
	assert.Empty(t, r.client.Actions(), "nothing was started")
	assert.Equal(t, "0", r.file(t, "proc/self/oom_score_adj"))
}

func TestModeIPVSWithoutItsFeatureGateIsAClearError(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	const want = `mode: Unsupported value: "ipvs": supported values: "iptables", "nftables"`
	assert.ErrorContains(t, r.run("--proxy-mode=ipvs", "--feature-gates=KubeProxyIPVS=false"), want)
	assert.ErrorContains(t, r.run("--config="+writeFile(t, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
featureGates: {KubeProxyIPVS: false}
`)), want)
	assert.Empty(t, r.client.Actions(), "nothing was started")
}

const routeLocalnet = "proc/sys/net/ipv4/conf/all/route_localnet"

func TestInitOnlySetsKernelParametersAndEnds(t *testing.T) {
	needModesOfLinux(t)
	for name, tc := range map[string]struct {
		args     []string
		localnet string
	}{
		"in mode iptables, the default":              {nil, "1"},
		"without node ports on 127.0.0.1":            {[]string{"--iptables-localhost-nodeports=false"}, "0"},
		"if nodePortAddresses leave 127.0.0.1 out":   {[]string{"--nodeport-addresses=192.0.2.0/24,::/0"}, "0"},
		"if node ports are on the node's own only":   {[]string{"--nodeport-addresses=primary"}, "0"},
		"if nodePortAddresses have a part of 127/8":  {[]string{"--nodeport-addresses=192.0.2.0/24,127.0.0.1/32"}, "1"},
		"if localhost is among nodePortAddresses":    {[]string{"--nodeport-addresses=primary,localhost"}, "1"},
		"if nodePortAddresses are all":               {[]string{"--nodeport-addresses=primary,all"}, "1"},
		"if nodePortAddresses have no IPv4 at all":   {[]string{"--nodeport-addresses=::/0"}, "1"},
		"in mode nftables, which has no such option": {[]string{"--proxy-mode=nftables"}, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface,
				error) {
				return nil, errors.New("no API server is needed")
			}
			require.NoError(t, r.run(append(tc.args, "--init-only", "--conntrack-udp-timeout=77s",
				"--oom-score-adj=5")...))
			assert.Equal(t, "77", r.file(t, "proc/sys/net/netfilter/nf_conntrack_udp_timeout"))
			assert.Equal(t, tc.localnet, r.file(t, routeLocalnet))
			assert.Equal(t, "0", r.file(t, "proc/self/oom_score_adj"), "it is of no use to a process that ends")
			assert.Empty(t, r.client.Actions())
			assert.Zero(t, r.nft.Applied())
		})
	}
}

func TestWhatCannotBeSet(t *testing.T) {
	needModesOfLinux(t)
	const noTimeout = "net/netfilter/nf_conntrack_udp_timeout"
	rigWith := func() *rig {
		r := newRig(t, cluster()...)
		require.NoError(t, os.Remove(filepath.Join(r.root, "proc/sys", noTimeout)))
		require.NoError(t, os.Remove(filepath.Join(r.root, routeLocalnet)))
		return r
	}
	t.Run("is an error with --init-only, by its name, and the rest is set", func(t *testing.T) {
		r := rigWith()
		err := r.run("--init-only", "--conntrack-udp-timeout=77s")
		assert.ErrorContains(t, err, noTimeout)
		assert.ErrorContains(t, err, "net/ipv4/conf/all/route_localnet")
		assert.NotEqual(t, "1", r.file(t, "proc/sys/net/netfilter/nf_conntrack_max"))
	})
	t.Run("is logged otherwise", func(t *testing.T) {
		r := rigWith()
		stop := r.start(t, append(arguments, "--conntrack-udp-timeout=77s")...)
		r.waitFor(t, tableIPv4, contains("10.244.1.5"))
		require.NoError(t, stop())
		assert.Contains(t, r.logged(), noTimeout)
	})
}

func TestAStartThatFailsLeavesTheMachineAsItWas(t *testing.T) {
	needModesOfLinux(t)
	noClient := errors.New("no such kubeconfig")
	for name, tc := range map[string]struct {
		args   []string
		client error
		want   string
	}{
		"no client": {arguments, noClient, "no such kubeconfig"},
		"no IPv6 where it is needed": {append(arguments, "--bind-address=2001:db8::1"), nil,
			"no support for the primary IP family"},
		"CIDRs of a family that is not": {[]string{"--proxy-mode=nftables", "--cluster-cidr=fd00::/8"}, nil,
			"serves IPv4 only"},
		"a mode that is not there":        {[]string{"--proxy-mode=kernelspace"}, nil, "kernelspace"},
		"a flag that is wrong altogether": {[]string{"--cluster-cidr=x"}, nil, "must be a CIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cluster()...)
			_, err := r.machine.root.SetInt("net/ipv6/conf/all/disable_ipv6", 1)
			require.NoError(t, err)
			if tc.client != nil {
				r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface,
					error) {
					return nil, tc.client
				}
			}
			assert.ErrorContains(t, r.run(tc.args...), tc.want)
			assert.Equal(t, "1", r.file(t, "proc/sys/net/netfilter/nf_conntrack_max"))
			assert.Equal(t, "0", r.file(t, "proc/self/oom_score_adj"))
		})
	}
}

// addUpstreamTable adds a table as Kubernetes' own kube-proxy would have left it, and returns its key.
func (r *rig) addUpstreamTable(t *testing.T) dataplane.TableKey {
	key := dataplane.TableKey{Family: model.IPv4, Name: "kube-proxy"}
	tx := dataplane.NewTransaction(key)
	tx.AddTable("rules for kube-proxy")
	require.NoError(t, r.nft.ApplyAsSomebodyElse(tx))
	return key
}

func TestCleanUpRemovesOursAlone(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	stop := r.start(t, arguments...)
	r.waitFor(t, tableIPv4, contains("10.244.1.5"))
	require.NoError(t, stop())
	upstream := r.addUpstreamTable(t)

	require.NoError(t, r.run("--cleanup"))
	assert.Empty(t, r.nft.Dump(tableIPv4))
	assert.Empty(t, r.nft.Dump(tableIPv6))
	assert.NotEmpty(t, r.nft.Dump(upstream))
	require.NoError(t, r.run("--cleanup"), "once more is no error")
}

func TestKubeProxysRulesAreRemovedOnceOursAreApplied(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	upstream := r.addUpstreamTable(t)
	var tooEarly bool
	r.nft.before = func(tx *dataplane.Transaction) {
		if tx.Table == upstream && !strings.Contains(r.nft.Dump(tableIPv4), "10.244.1.5") {
			tooEarly = true
		}
	}
	stop := r.start(t, arguments...)
	r.waitFor(t, upstream, func(dump string) bool { return dump == "" })
	require.NoError(t, stop())
	assert.False(t, tooEarly)
	assert.NotEmpty(t, r.nft.Dump(tableIPv4))
	assert.Contains(t, r.logged(), `which may be left over; if it still runs, end it" "found"="nft table ip kube-proxy"`)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// waitHealthy waits until a proxy has noted that it has applied something, which follows the first rules.
func waitHealthy(t *testing.T, health string) {
	t.Helper()
	require.Eventually(t, func() bool {
		code, _ := get(t, health+"/healthz")
		return code == http.StatusOK
	}, time.Minute, time.Millisecond)
}

func TestWhatIsServed(t *testing.T) {
	r := newRig(t, cluster()...)
	stop := r.start(t, append(arguments, "--profiling")...)
	r.waitServed(t)
	health, metrics := r.url(t, "0.0.0.0:10256"), r.url(t, "127.0.0.1:10249")
	waitHealthy(t, health)

	for _, path := range []string{"/healthz", "/livez"} {
		code, body := get(t, health+path)
		assert.Equal(t, http.StatusOK, code, path)
		var status struct{ NodeEligible, Healthy *bool }
		require.NoError(t, json.Unmarshal([]byte(body), &status), path)
		assert.True(t, *status.Healthy)
		assert.Equal(t, path == "/healthz", status.NodeEligible != nil)
	}
	code, _ := get(t, health+"/metrics")
	assert.Equal(t, http.StatusNotFound, code)

	_, body := get(t, metrics+"/healthz")
	assert.Equal(t, "ok", body)
	_, body = get(t, metrics+"/proxyMode")
	assert.Equal(t, nameOfOwnMode(), body)
	// The rules were applied before that was measured.
	require.Eventually(t, func() bool {
		_, body = get(t, metrics+"/metrics")
		return strings.Contains(body, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
	}, time.Minute, time.Millisecond)
	for _, name := range []string{"kubeproxy_sync_proxy_rules_duration_seconds", "kubeproxy_proxy_healthz_total",
		"go_goroutines", "process_open_fds"} {
		assert.Contains(t, body, name)
	}
	_, body = get(t, metrics+"/statusz")
	assert.Contains(t, body, "kube-proxy statusz\n")
	assert.Contains(t, body, "Paths: /configz /debug /flagz /healthz /metrics /proxyMode\n")
	_, body = get(t, metrics+"/flagz")
	assert.Contains(t, body, "\ncluster-cidr=10.244.0.0/16\n")
	_, body = get(t, metrics+"/configz")
	var configz map[string]struct{ APIVersion, Mode, ClusterCIDR string }
	require.NoError(t, json.Unmarshal([]byte(body), &configz))
	assert.Equal(t, "kubeproxy.config.k8s.io/v1alpha1", configz["kubeproxy.config.k8s.io"].APIVersion)
	assert.Equal(t, nameOfOwnMode(), configz["kubeproxy.config.k8s.io"].Mode)
	assert.Equal(t, "10.244.0.0/16", configz["kubeproxy.config.k8s.io"].ClusterCIDR)
	code, _ = get(t, metrics+"/debug/pprof/cmdline")
	assert.Equal(t, http.StatusOK, code)
	require.NoError(t, stop())
}

func TestANodeThatIsAboutToGoIsNotEligible(t *testing.T) {
	r := newRig(t, append(cluster()[1:],
		kube.Node("n1").InternalIP("192.0.2.1").Taint("ToBeDeletedByClusterAutoscaler").Build())...)
	r.start(t, arguments...)
	r.waitServed(t)
	code, _ := get(t, r.url(t, "0.0.0.0:10256")+"/healthz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = get(t, r.url(t, "0.0.0.0:10256")+"/livez")
	assert.Equal(t, http.StatusOK, code)
}

func TestProfilesAreServedOnRequestOnly(t *testing.T) {
	r := newRig(t, cluster()...)
	r.start(t, append(arguments, "--healthz-port=0")...)
	code, _ := get(t, r.url(t, "127.0.0.1:10249")+"/debug/pprof/cmdline")
	assert.Equal(t, http.StatusNotFound, code)
	r.waitServed(t)
	r.bound.mu.Lock()
	defer r.bound.mu.Unlock()
	assert.NotContains(t, r.bound.byAsked, "0.0.0.0:10256", "port 0 turns the server off")
}

func TestAnAddressThatIsTaken(t *testing.T) {
	taken := errors.New("it is taken")
	rigWith := func() *rig {
		r := newRig(t, cluster()...)
		r.bound.fail = func(address string) error {
			if address == "127.0.0.1:10249" {
				return taken
			}
			return nil
		}
		return r
	}
	t.Run("ends the program if that is configured", func(t *testing.T) {
		err := rigWith().run(append(arguments, "--bind-address-hard-fail")...)
		assert.ErrorIs(t, err, taken)
		assert.ErrorContains(t, err, "metrics server on 127.0.0.1:10249")
	})
	t.Run("does so while it waits for the node, too", func(t *testing.T) {
		r := rigWith()
		require.NoError(t, r.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		err := r.run(append(ownMode(), "--detect-local-mode=NodeCIDR", "--bind-address-hard-fail")...)
		assert.ErrorIs(t, err, taken)
	})
	t.Run("is logged otherwise", func(t *testing.T) {
		r := rigWith()
		stop := r.start(t, arguments...)
		r.waitServed(t)
		r.url(t, "0.0.0.0:10256")
		r.waitLogged(t, "metrics server on 127.0.0.1:10249: it is taken")
		require.NoError(t, stop())
	})
}

func TestStaleFlowsAreLookedFor(t *testing.T) {
	r := newRig(t, cluster()...)
	table := flowTable(make(chan model.Family, 10))
	r.flows = table
	r.start(t, arguments...)
	families := []model.Family{}
	for len(families) < 2 {
		select {
		case f := <-table:
			families = append(families, f)
		case <-r.ended:
			t.Fatal(r.logged())
		}
	}
	assert.ElementsMatch(t, []model.Family{model.IPv4, model.IPv6}, families)
}

// A flow to a node port on 127.0.0.1 without a rewritten destination is stale where rules serve that address, and
// nowhere else.
func TestStaleFlowsOfLoopbackNodePorts(t *testing.T) {
	needModesOfLinux(t)
	dns := kube.Service("default/dns").ClusterIP("10.96.0.53").UDPPort("dns", 53).NodePort(30053).Build()
	client, at := netip.MustParseAddrPort("127.0.0.1:4000"), netip.MustParseAddrPort("127.0.0.1:30053")
	for mode, stale := range map[string]bool{"iptables": true, "nftables": false} {
		r := newRig(t, append(cluster(), dns)...)
		r.hostAddresses.Set(nodeaddr.HostAddress{Addr: client.Addr(), Interface: "lo"})
		table := oneFlow{conntrack.Flow{Source: client, Destination: at, ReplySource: at, ReplyDestination: client},
			make(chan bool, 10)}
		r.flows = table
		r.start(t, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=127.0.0.0/8")
		select {
		case is := <-table.stale:
			assert.Equal(t, stale, is, mode)
		case <-r.ended:
			t.Fatal(r.logged())
		}
	}
}

// oneFlow is a conntrack.Table with a flow of which it tells whether it is stale.
type oneFlow struct {
	flow  conntrack.Flow
	stale chan bool
}

func (f oneFlow) DeleteUDP(_ context.Context, family model.Family, _ []conntrack.Selection,
	stale func(conntrack.Flow) bool) (int, error) {
	if family == model.IPv4 {
		f.stale <- stale(f.flow)
	}
	return 0, nil
}

// flowTable is a conntrack.Table without flows that tells for which family it is asked.
type flowTable chan model.Family

func (f flowTable) DeleteUDP(_ context.Context, family model.Family, _ []conntrack.Selection,
	_ func(conntrack.Flow) bool) (int, error) {
	f <- family
	return 0, nil
}

func TestEventsAreWritten(t *testing.T) {
	service := kube.Service("default/lb").ClusterIP("10.96.0.11").Port("http", 80).NodePort(30081).
		LoadBalancerIP("203.0.113.1").ExternalLocal().HealthCheckNodePort(30999).Build()
	r := newRig(t, append(cluster(), service)...)
	r.bound.fail = func(address string) error {
		if strings.HasSuffix(address, ":30999") {
			return errors.New("it is taken")
		}
		return nil
	}
	written := make(chan *eventsv1.Event, 10)
	r.client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		written <- event
		return true, event, nil
	})
	r.start(t, append(arguments, "--nodeport-addresses=0.0.0.0/0,::/0")...)
	want := map[string]string{
		"Starting":                        "Node n1 n1 Normal StartKubeProxy kube-proxy",
		"FailedToStartServiceHealthcheck": "Service lb  Warning Listen kube-proxy",
	}
	if goruntime.GOOS == "windows" {
		want["UnsupportedByHNS"] = "Service lb  Warning Sync kube-proxy" // the policy is the same for all sources
	}
	got := map[string]string{}
	for len(got) < len(want) {
		select {
		case e := <-written:
			got[e.Reason] = e.Regarding.Kind + " " + e.Regarding.Name + " " + string(e.Regarding.UID) + " " + e.Type +
				" " + e.Action + " " + e.ReportingController
		case <-r.ended:
			t.Fatal("events are missing: ", got, r.logged())
		}
	}
	assert.Equal(t, want, got)
}

func TestHealthChecksOfServicesFollowTheNodePortAddresses(t *testing.T) {
	service := kube.Service("default/lb").ClusterIP("10.96.0.11").Port("http", 80).NodePort(30081).
		LoadBalancerIP("203.0.113.1").ExternalLocal().HealthCheckNodePort(30999).Build()
	slice := kube.EndpointSlice("default/lb").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build()
	t.Run("the node's own by default", func(t *testing.T) {
		needModesOfLinux(t) // that is mode nftables' default
		r := newRig(t, append(cluster(), service, slice)...)
		r.start(t, arguments...)
		code, body := get(t, r.url(t, "192.0.2.1:30999"))
		assert.Equal(t, http.StatusOK, code)
		assert.Contains(t, body, `"localEndpoints": 1`)
	})
	t.Run("those in CIDRs, as they come", func(t *testing.T) {
		r := newRig(t, append(cluster(), service, slice)...)
		r.hostAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("198.51.100.1"), Interface: "eth0"})
		r.start(t, append(arguments, "--nodeport-addresses=198.51.100.0/24")...)
		r.url(t, "198.51.100.1:30999")
		r.hostAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("198.51.100.2"), Interface: "eth0"})
		code, _ := get(t, r.url(t, "198.51.100.2:30999"))
		assert.Equal(t, http.StatusOK, code)
	})
	// Mode ipvs has the VIP on an interface of its own.
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		t.Run("at its VIP, once the host has it, in mode "+mode, func(t *testing.T) {
			needModesOfLinux(t)
			r := newRig(t, append(cluster(), service, slice)...)
			r.local = &r.localAddresses
			r.hostAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"})
			r.start(t, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=192.0.2.0/24",
				"--iptables-min-sync-period=0", "--ipvs-min-sync-period=0")
			r.url(t, "192.0.2.1:30999")
			r.localAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("203.0.113.1")})
			code, _ := get(t, r.url(t, "203.0.113.1:30999"))
			assert.Equal(t, http.StatusOK, code)
		})
	}
}

func TestItEndsWhileItWaitsForTheNode(t *testing.T) {
	r := newRig(t)
	listed := make(chan struct{}, 1)
	r.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case listed <- struct{}{}:
		default:
		}
		return false, nil, nil
	})
	stop := r.start(t, arguments...)
	<-listed
	assert.NoError(t, stop())
	assert.Zero(t, r.nft.Applied())
	assert.Zero(t, r.hns.NumLoadBalancers())
}

// A liveness probe must not end a program that waits for the node.
func TestItIsAliveWhileItWaitsForTheNode(t *testing.T) {
	r := newRig(t, cluster()[1:]...)
	stop := r.start(t, append(ownMode(), "--iptables-min-sync-period=0", "--detect-local-mode=NodeCIDR")...)
	health := r.url(t, "0.0.0.0:10256")
	code, _ := get(t, health+"/livez")
	assert.Equal(t, http.StatusOK, code)
	code, _ = get(t, health+"/healthz")
	assert.Equal(t, http.StatusServiceUnavailable, code, "no traffic for a node that is not known")
	_, body := get(t, r.url(t, "127.0.0.1:10249")+"/proxyMode")
	assert.Equal(t, nameOfOwnMode(), body)
	assert.Zero(t, r.nft.Applied())
	assert.Zero(t, r.hns.NumLoadBalancers())

	_, err := r.client.CoreV1().Nodes().Create(t.Context(), cluster()[0].(*corev1.Node), metav1.CreateOptions{})
	require.NoError(t, err)
	r.waitServed(t)
	waitHealthy(t, health)
	require.NoError(t, stop())
}

func TestABackendThatCannotStartIsAnError(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	r.nftables = noNFTables{r.nft}
	err := r.run(arguments...)
	assert.ErrorContains(t, err, "mode nftables: ")
	assert.ErrorContains(t, err, "no nf_tables here")
}

type noNFTables struct{ dataplane.Interface }

func (noNFTables) Check(context.Context, *dataplane.Transaction) error {
	return errors.New("no nf_tables here")
}
