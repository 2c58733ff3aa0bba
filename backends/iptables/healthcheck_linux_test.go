package iptables_test

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A load balancer that gets no answer takes the node out (S38).
func TestHealthChecksAreAnsweredWhereTheFirewallDropsEverythingElse(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		testns.Enter(t)
		run := func(name string, args ...string) {
			out, err := exec.Command(name, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		run("ip", "link", "set", "lo", "up")
		run("iptables-"+string(v), "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		run("iptables-"+string(v), "-P", "INPUT", "DROP")
		r := newKernelRig(t, v)
		r.Set(backendtest.Node(), fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).
			LoadBalancerIP("203.0.113.1").ExternalLocal().HealthCheck(32100, 1, 0).Build())
		r.Sync()
		server, err := net.Listen("tcp4", "127.0.0.1:32100")
		require.NoError(t, err)
		defer server.Close()
		client, err := net.DialTimeout("tcp4", "127.0.0.1:32100", 5*time.Second) // in vain without the rule
		require.NoError(t, err)
		require.NoError(t, client.Close())
	})
}
