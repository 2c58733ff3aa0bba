package iptables_test

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A load balancer that gets no answer takes the node out (S38).
func TestHealthChecksAreAnsweredWhereTheFirewallDropsEverythingElse(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		testkit.EnterNamespace(t)
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
		iptablesProgram := need.Program(t, "iptables-"+string(v))
		for _, args := range [][]string{
			{"-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"}, {"-P", "INPUT", "DROP"},
		} {
			out, err := exec.Command(iptablesProgram, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		r := newKernelRig(t, v)
		r.Set(backendtest.Node(), fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).
			LoadBalancerIP("203.0.113.1").ExternalLocal().HealthCheck(32100, 1, 0).Build())
		r.Sync()
		server, err := net.Listen("tcp4", "127.0.0.1:32100")
		require.NoError(t, err)
		defer server.Close()
		client, err := net.DialTimeout("tcp4", "127.0.0.1:32100", time.Minute) // in vain without the rule
		require.NoError(t, err)
		require.NoError(t, client.Close())
	})
}
