package preflight

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// translation sends connections to node port 30080 of loopback addresses to port 8080, as kube-proxy sends them to
// pods.
const translation = `
table inet nat {
  chain output {
    type nat hook output priority -100
    fib daddr type local th dport 30080 meta l4proto { tcp, udp } redirect to :8080
  }
}`

// TestConnectionsThatTheKernelTracks connects to a node port on 127.0.0.1, in a network namespace.
func TestConnectionsThatTheKernelTracks(t *testing.T) {
	nft := need.Program(t, "nft")
	testkit.EnterNamespace(t)
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	address, err := netlink.ParseAddr("192.0.2.1/32")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(lo, address))
	load := exec.CommandContext(t.Context(), nft, "-f", "-")
	load.Stdin = strings.NewReader(translation)
	out, err := load.CombinedOutput()
	require.NoError(t, err, string(out))

	count, err := loopbackConnections()
	require.NoError(t, err)
	assert.Empty(t, count, "before anybody connects")

	for _, address := range []string{"127.0.0.1:8080", "[::1]:8080", "192.0.2.1:8080"} {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		defer listener.Close()
	}
	for _, c := range []struct{ network, to string }{{"tcp", "127.0.0.1:30080"}, {"tcp", "127.0.0.1:30080"},
		{"tcp", "[::1]:30080"}, {"tcp", "127.0.0.1:8080"}, {"tcp", "192.0.2.1:30080"}, {"udp", "127.0.0.1:30080"}} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), c.network, c.to)
		require.NoError(t, err, c.to)
		defer conn.Close()
		if c.network == "udp" {
			_, err = conn.Write([]byte("a datagram")) // nobody listens
			require.NoError(t, err)
		}
	}
	count, err = loopbackConnections()
	require.NoError(t, err)
	assert.Equal(t, map[connection]int{
		{model.TCP, netip.MustParseAddrPort("127.0.0.1:30080")}: 2,
		{model.TCP, netip.MustParseAddrPort("[::1]:30080")}:     1,
		{model.TCP, netip.MustParseAddrPort("127.0.0.1:8080")}:  1,
		{model.UDP, netip.MustParseAddrPort("127.0.0.1:30080")}: 1,
	}, count)

	// preflight prints the number of connections next to the difference that affects them.
	file := with(t, "nodePort: 30080", "type: NodePort", "node-1")
	assert.Equal(t, []string{"shop/web:http/TCP at 127.0.0.1:30080, from the node: delivered, with an address of the " +
		"node as the source; then not served (S36); the node is tracking 2 connections"},
		lines(t, "--file", file, "--from", "iptables", "--to", "--proxy-mode=iptables --iptables-localhost-nodeports=false",
			"--connections"))
}
