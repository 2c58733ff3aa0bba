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
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
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
	client, node, server *testkit.Namespace
}

var (
	rigService  = netip.MustParseAddrPort("10.96.0.10:80")
	rigEndpoint = netip.MustParseAddrPort("10.1.0.2:8080")
)

func newRig(t testing.TB) *rig {
	r := &rig{t, testkit.NewNamespace(t), testkit.NewNamespace(t), testkit.NewNamespace(t)}
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
func (r *rig) wire(name string, to *testkit.Namespace, nodeAddr, addr string) {
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

// proxyVariable in the environment makes TestProxyProcess a proxy.
const proxyVariable = "KPL_USERSPACE_PROXY"

// start runs the backend as a process on the node until the test ends.
func (r *rig) start() (pid int) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProxyProcess$")
	cmd.Env = append(os.Environ(), proxyVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(r.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(r.t, err)
	r.node.Do(cmd.Start)
	r.t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(r.t, cmd.Wait())
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(r.t, err)
	require.Equal(r.t, "ready\n", line)
	return cmd.Process.Pid
}

// TestProxyProcess is not a test but the process that rig.start runs.
func TestProxyProcess(t *testing.T) {
	if os.Getenv(proxyVariable) == "" {
		t.Skip("it is run by other tests")
	}
	routes, err := newLocalRoutes()
	require.NoError(t, err)
	defer routes.handle.Close()
	b, err := userspace.New(t.Context(), userspace.Options{Addresses: routes,
		Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	require.NoError(t, err)
	describe(b)
	require.NoError(t, b.Sync(t.Context()))
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, b.Close())
}
