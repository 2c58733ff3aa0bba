package iptables_test

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

func TestTheKernelCountsDroppedAndAcceptedPackets(t *testing.T) {
	eachVariant(t, func(t *testing.T, v dataplane.Variant) {
		needCounters(t, v)
		flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
		reg := prometheus.NewPedanticRegistry()
		o := iptables.Options{LocalhostNodePorts: true, Common: frontend.Common{Metrics: reg}}.Of(v).CheckingEvery(-1)
		r := (&rig{t: t, options: o}).start()
		counted := func() map[string]float64 {
			values := backendtest.Metrics(t, reg, "kubeproxy_iptables_")
			return map[string]float64{"accepted": values["localhost_nodeports_accepted_packets_total"],
				"dropped": values["ct_state_invalid_dropped_packets_total"]}
		}
		program := need.Program(t, "iptables-"+string(v))
		run := func(args ...string) {
			out, err := exec.Command(program, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		// Another program's port on the same address, as that of a pod's host port.
		run("-t", "nat", "-A", "OUTPUT", "-d", "127.0.0.1", "-p", "udp", "--dport", "8081", "-j", "DNAT", "--to-destination",
			"10.1.0.2:8080")

		svc := fm.Service("default/dns").DetectsLocalPods().ClusterIP("10.96.255.1").UDPPort("dns", 80).NodePort(30053)
		r.Set(backendtest.Node(), svc.Build(), flows.Endpoint(1))
		r.Sync()
		assert.Equal(t, map[string]float64{"accepted": 0, "dropped": 0}, counted())
		for range 2 { // two flows of two packets each: each flow counts once
			answered(t, "127.0.0.1:30053", 2)
		}
		answered(t, "127.0.0.1:8081", 1)
		answered(t, "10.1.0.9:30053", 1)
		answered(t, "10.96.255.1:80", 1)
		assert.Equal(t, map[string]float64{"accepted": 2, "dropped": 0}, counted())

		r.Set(svc.ExternalLocal().Build()) // what comes from the node itself goes to all endpoints nevertheless (S27)
		r.Sync()
		answered(t, "127.0.0.1:30053", 1)
		assert.Equal(t, map[string]float64{"accepted": 3, "dropped": 0}, counted())

		run("-A", "OUTPUT", "-j", "KPL-FORWARD") // as if this packet were forwarded; the next Sync removes it
		sendReset(t)
		assert.Equal(t, map[string]float64{"accepted": 3, "dropped": 1}, counted())
		r.Restart()
		r.Sync()
		assert.Equal(t, map[string]float64{"accepted": 3, "dropped": 1}, counted(), "a restart resets nothing")

		require.NoError(t, r.backend.CleanUp(t.Context()))
		assert.Empty(t, backendtest.Metrics(t, reg, "kubeproxy_iptables_"), "the counters are gone")
	})
}

// answered sends packets of one flow, each of which an endpoint has to answer.
func answered(t *testing.T, to string, packets int) {
	t.Helper()
	conn, err := net.Dial("udp4", to)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for range packets {
		_, err = conn.Write([]byte("hello"))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 16))
		require.NoError(t, err, to)
	}
}

// sendReset sends a TCP segment that belongs to no connection and begins none.
func sendReset(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	require.NoError(t, err)
	defer unix.Close(fd)
	segment := []byte{0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 1 << 2, 0, 0, 0, 0, 0, 0}
	if err := unix.Sendto(fd, segment, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 1, 0, 1}}); err != nil {
		require.ErrorIs(t, err, unix.EPERM) // what is dropped on its way out
	}
}
