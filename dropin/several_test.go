package dropin

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Two nodes in one process, from structs: each serves its own node, health and metrics, and one goes on when the other
// ends. The test of all goroutines is TestMain's.
func TestSeveralInOneProcess(t *testing.T) {
	needModesOfLinux(t)
	slice := func(local string) *kube.EndpointSliceBuilder {
		return kube.EndpointSlice("default/web").Port("http", 8080).Endpoint(local).OnNode("n1").
			Endpoint("10.244.2.5").OnNode("n2")
	}
	first := newRig(t,
		kube.Node("n1").InternalIP("192.0.2.1").Build(), kube.Node("n2").InternalIP("192.0.2.2").Build(),
		kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).InternalLocal().Build(),
		slice("10.244.1.5").Build(),
	)
	second := newRig(t)
	second.client = first.client
	for _, r := range []*rig{first, second} {
		r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface, error) {
			t.Error("the client is given")
			return r.client, nil
		}
	}
	watching := first.watches("endpointslices")
	start := func(r *rig, node, health, metrics string) (stop func() error) {
		c := &v1alpha2.KubeProxyConfiguration{ // the other fields have their defaults
			HostnameOverride: node, Mode: v1alpha2.ProxyModeNFTables, MinSyncPeriod: &metav1.Duration{},
			HealthzBindAddress: health, MetricsBindAddress: metrics, EnableProfiling: true,
		}
		before := c.DeepCopy()
		stop = r.startFunc(t, func(ctx context.Context) error {
			return Run(ctx, Config{Configuration: c, Client: r.client, machine: r.machine})
		})
		<-watching
		t.Cleanup(func() {
			_ = stop()
			assert.Equal(t, before, c, "it is not changed")
		})
		return stop
	}
	stop := start(first, "n1", "127.0.0.1:20256", "127.0.0.1:20249")
	start(second, "n2", "127.0.0.1:30256", "127.0.0.1:30249")
	serves := func(with, without string) func(string) bool {
		return func(dump string) bool { return strings.Contains(dump, with) && !strings.Contains(dump, without) }
	}
	first.waitFor(t, tableIPv4, serves("10.244.1.5", "10.244.2.5"))
	second.waitFor(t, tableIPv4, serves("10.244.2.5", "10.244.1.5"))
	for r, asked := range map[*rig][2]string{
		first: {"127.0.0.1:20256", "127.0.0.1:20249"}, second: {"127.0.0.1:30256", "127.0.0.1:30249"},
	} {
		waitHealthy(t, r.url(t, asked[0]))
		require.Eventually(t, func() bool { // measured after the rules were applied
			_, body := get(t, r.url(t, asked[1])+"/metrics")
			return strings.Contains(body, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
		}, time.Minute, time.Millisecond)
		code, _ := get(t, r.url(t, asked[1])+"/debug/flags/v")
		assert.Equal(t, http.StatusNotFound, code, "klog is the process's")
		assert.Equal(t, "0", r.file(t, "proc/self/oom_score_adj"), "so is this")
		assert.Zero(t, r.gcPercent.Load(), "and this")
	}

	health := first.url(t, "127.0.0.1:20256")
	require.NoError(t, stop())
	response, err := http.Get(health + "/healthz")
	if !assert.Error(t, err) {
		_ = response.Body.Close()
	}
	left := first.nft.Dump(tableIPv4)
	moved := slice("10.244.1.6").Endpoint("10.244.2.6").OnNode("n2").Build()
	_, err = first.client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), moved, metav1.UpdateOptions{})
	require.NoError(t, err)
	second.waitFor(t, tableIPv4, contains("10.244.2.6"))
	code, _ := get(t, second.url(t, "127.0.0.1:30256")+"/healthz")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, left, first.nft.Dump(tableIPv4), "the rules of the one that has ended stay")
}

// Configurations that are wrong in code, where no flag or file was checked before.
func TestAConfigurationInCodeIsChecked(t *testing.T) {
	for want, c := range map[string]Config{
		"oomScoreAdj": {Configuration: &v1alpha2.KubeProxyConfiguration{
			Linux: v1alpha2.LinuxConfiguration{OOMScoreAdj: ptr.To[int32](2000)}}},
		"are not on a loopback address but on": {Page: true,
			Configuration: &v1alpha2.KubeProxyConfiguration{MetricsBindAddress: "0.0.0.0:10249"}},
		"featureGates": {Configuration: &v1alpha2.KubeProxyConfiguration{
			FeatureGates: map[string]bool{"NFTablesProxyMode": false}}},
		"userspace": {Configuration: &v1alpha2.KubeProxyConfiguration{Mode: "userspace"}},
	} {
		r := newRig(t)
		c.machine = r.machine
		ctx, cancel := context.WithCancel(r.ctx)
		cancel() // what is valid ends at once
		assert.ErrorContains(t, Run(ctx, c), want)
		assert.Empty(t, r.client.Actions())
	}
}
