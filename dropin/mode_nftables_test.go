package dropin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// nodePortCluster is a cluster with a service that has a node port.
func nodePortCluster(nodePort int32) []runtime.Object {
	return []runtime.Object{
		kube.Node("n1").InternalIP("192.0.2.1", "2001:db8::1").PodCIDR("10.244.1.0/24").Build(),
		kube.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(nodePort).Build(),
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build(),
	}
}

// unused returns the number of a free port on 127.0.0.1. It is in Kubernetes' range of node ports, which the kernel
// does not use for ephemeral ports.
func unused(t *testing.T) int32 {
	for try := 1; ; try++ {
		port := 32000 + rand.Int32N(768) // the tests of backends/userspace take others
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			require.NoError(t, l.Close())
			return port
		}
		require.Less(t, try, 1000, err)
	}
}

// accepts reports whether connections to a port of 127.0.0.1 are accepted.
func accepts(port int32) bool {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestTheGateServesNodePortsOnLoopbackAddresses(t *testing.T) {
	needModesOfLinux(t)
	const gate = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true"
	for _, test := range []struct {
		name   string
		args   []string
		served bool
	}{
		{"without the gate", []string{"--nodeport-addresses=127.0.0.0/8"}, false},
		{"without a loopback address", []string{gate, "--nodeport-addresses=192.0.2.0/24"}, false},
		{"the default, which is primary", []string{gate}, false},
		{"with a loopback address", []string{gate, "--nodeport-addresses=192.0.2.0/24,127.0.0.0/8"}, true},
		{"with the keyword", []string{gate, "--nodeport-addresses=primary,localhost"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			nodePort := unused(t)
			r := newRig(t, nodePortCluster(nodePort)...)
			r.hostAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"})
			stop := r.start(t, append([]string{"--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16"}, test.args...)...)
			r.waitFor(t, tableIPv4, contains("10.96.0.10"))
			if test.served {
				require.Eventually(t, func() bool { return accepts(nodePort) }, time.Minute, time.Millisecond)
				require.Eventually(t, func() bool { // the gauge is set once all listeners are open
					_, metrics := get(t, r.url(t, "127.0.0.1:10249")+"/metrics")
					return strings.Contains(metrics, "kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv4\"} 1\n")
				}, time.Minute, time.Millisecond)
			}
			require.NoError(t, stop())
			assert.False(t, accepts(nodePort))
			if !test.served {
				assert.NotContains(t, r.logged(), "loopback addresses")
			}
		})
	}
}

// A program of the host that has a node port's number on 127.0.0.1 keeps it. The log and an Event say so.
func TestANodePortThatAnotherProgramHasOnLoopbackIsReported(t *testing.T) {
	needModesOfLinux(t)
	nodePort := unused(t)
	program, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", nodePort))
	require.NoError(t, err)
	defer program.Close()
	r := newRig(t, nodePortCluster(nodePort)...)
	r.hostAddresses.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("127.0.0.1"), Interface: "lo"})
	stop := r.start(t, "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=127.0.0.0/8",
		"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true")
	reported := func() bool {
		events, err := r.client.EventsV1().Events("").List(context.Background(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range events.Items {
			if e.Reason == "FailedToApplyServicePort" && strings.Contains(e.Note, "another program of this host") {
				return true
			}
		}
		return false
	}
	require.Eventually(t, reported, time.Minute, 5*time.Millisecond)
	assert.Contains(t, r.logged(), fmt.Sprintf("127.0.0.1:%d: bind: address already in use", nodePort))
	assert.Contains(t, r.nft.Dump(tableIPv4), "10.96.0.10", "everything else is applied")

	require.NoError(t, program.Close())
	require.Eventually(t, func() bool { return accepts(nodePort) }, time.Minute, 10*time.Millisecond, "it is tried "+
		"again without a change")
	require.NoError(t, stop())
}
