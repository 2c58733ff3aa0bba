package userspace_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rig is a client, a node and a server, each in a network namespace. The node routes between the other two. A proxy on
// it serves 10.96.0.10:80, TCP and UDP, with the server as the only endpoint; the routes do not masquerade.
//
//	client 10.2.0.2 ── 10.2.0.1 node 10.1.0.1 ── 10.1.0.2 server
type rig struct {
	t                    testing.TB
	client, node, server *testns.Namespace
}

var (
	rigService  = netip.MustParseAddrPort("10.96.0.10:80")
	rigEndpoint = netip.MustParseAddrPort("10.1.0.2:8080")
	rigClient   = netip.MustParseAddr("10.2.0.2")
)

func newRig(t testing.TB) *rig {
	r := &rig{t, testns.New(t), testns.New(t), testns.New(t)}
	r.wire("client", r.client, "10.2.0.1", "10.2.0.2")
	r.wire("server", r.server, "10.1.0.1", "10.1.0.2")
	// The kernel shows each thread the parameters of its own namespace.
	r.node.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	// The kernel drops packets until it has activated the links, which takes a moment.
	r.client.Do(func() (err error) {
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			_, err = net.DialTimeout("tcp", rigEndpoint.String(), 20*time.Millisecond)
			if errors.Is(err, unix.ECONNREFUSED) { // no server runs yet
				return nil
			}
		}
		return fmt.Errorf("the server's namespace is not reached: %w", err)
	})
	return r
}

// wire connects a namespace to the node.
func (r *rig) wire(name string, to *testns.Namespace, nodeAddr, addr string) {
	r.node.Do(func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(to.FD())})
		if err != nil {
			return err
		}
		return configure(name, nodeAddr+"/24")
	})
	to.Do(func() error {
		if err := configure("lo", ""); err != nil {
			return err
		}
		if err := configure("eth0", addr+"/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(nodeAddr)})
	})
	r.node.Do(func() error { return configure("lo", "") })
}

// configure sets an interface up, with an address unless that is empty.
func configure(link, addr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// describe passes the rig's service to a backend.
func describe(s sink.Sink) {
	s.SetService(fakemodel.Service("default/web").ClusterIP(rigService.Addr().String()).
		Port("http", rigService.Port()).UDPPort("dns", rigService.Port()).Build())
	for _, port := range []string{"http/TCP", "dns/UDP"} {
		s.SetEndpoint(fakemodel.Endpoint("default/web:"+port, rigEndpoint.String()).Build())
	}
}

// serve runs a TCP server at the endpoint.
func (r *rig) serve(handle func(*net.TCPConn)) {
	var l net.Listener
	r.server.Do(func() (err error) {
		l, err = net.Listen("tcp", rigEndpoint.String())
		return err
	})
	acceptAll(r.t, l, handle)
}

// proxyVariable in the environment makes TestProxyProcess a proxy: "plain" or "keepSource".
const proxyVariable = "KPL_USERSPACE_PROXY"

// start runs the backend as a process on the node until stop is called or the test ends.
func (r *rig) start(how string) (pid int, stop func()) {
	r.t.Helper()
	if how == "keepSource" {
		needWayBack(r.t)
		r.node.Do(func() error { return wayBack("up") })
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProxyProcess$")
	cmd.Env = append(os.Environ(), proxyVariable+"="+how)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(r.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(r.t, err)
	r.node.Do(cmd.Start)
	stop = sync.OnceFunc(func() {
		_ = stdin.Close()
		assert.NoError(r.t, cmd.Wait())
	})
	r.t.Cleanup(stop)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(r.t, err)
	require.Equal(r.t, "ready\n", line)
	return cmd.Process.Pid, stop
}

// TestProxyProcess is not a test but the process that rig.start runs.
func TestProxyProcess(t *testing.T) {
	how := os.Getenv(proxyVariable)
	if how == "" {
		t.Skip("it is run by other tests")
	}
	anyIP, err := userspace.NewAnyIP()
	require.NoError(t, err)
	defer anyIP.Close()
	b, err := userspace.New(t.Context(), userspace.Options{Addresses: anyIP,
		Common:     frontend.Common{Families: []model.Family{model.IPv4}},
		KeepSource: how == "keepSource"})
	require.NoError(t, err)
	describe(b)
	require.NoError(t, b.Sync(t.Context()))
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, b.Close())
}

// After the end of a flow the client may itself use the source port that the proxy had for it, and gets the answers.
func TestClientsMayUsePortsThatTheProxyHadInTheirName(t *testing.T) {
	r := newRig(t)
	_, stop := r.start("keepSource")
	var server, first, own *net.UDPConn
	listen := func(at netip.AddrPort) (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	}
	r.server.Do(func() (err error) { server, err = listen(rigEndpoint); return err })
	r.client.Do(func() (err error) { first, err = listen(netip.AddrPortFrom(rigClient, 0)); return err })
	defer server.Close()
	// ask sends a datagram, and returns as whom the server sees the client.
	ask := func(client *net.UDPConn, to netip.AddrPort) netip.AddrPort {
		buffer := make([]byte, 16)
		_, err := client.WriteToUDPAddrPort([]byte("who am I"), to)
		require.NoError(t, err)
		require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
		n, seen, err := server.ReadFromUDPAddrPort(buffer)
		require.NoError(t, err)
		_, err = server.WriteToUDPAddrPort(buffer[:n], seen)
		require.NoError(t, err)
		require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Minute)))
		_, _, err = client.ReadFromUDPAddrPort(buffer)
		require.NoError(t, err, "no answer from %v", to)
		return netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
	}
	used := ask(first, rigService)
	require.Equal(t, rigClient, used.Addr())
	require.NoError(t, first.Close()) // it may have the same port
	stop()
	r.client.Do(func() (err error) { own, err = listen(used); return err })
	defer own.Close()
	require.Equal(t, used, ask(own, rigEndpoint))
}
