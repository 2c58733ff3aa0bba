package dropin_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/internal/localaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Names and addresses of the lab, IPv4 first. The client is outside the cluster.
var (
	families     = []string{"IPv4", "IPv6"}
	nodeIPs      = [2]string{"172.30.0.1", "fd00:30::1"}
	clientIPs    = [2]string{"172.30.0.2", "fd00:30::2"}
	podCIDRs     = [2]string{"10.244.0.0/16", "fd00:244::/32"}
	gatewaysOnly = [2]string{"169.254.1.1", "fe80::1"} // the pods' default gateway, an address that nobody has
)

const (
	nodeName  = "n1"
	otherNode = "n2" // its pods are behind the same node: from there it looks as if they were not
)

// lab is a cluster with one node that a proxy can run on, and a client outside.
type lab struct {
	*cluster.Cluster
	t            *testing.T
	node, client *testkit.Namespace
	relay        *cluster.Relay // the way from the node to the API server

	mu   sync.Mutex
	pods int
}

// newLab also makes the Node.
func newLab(t *testing.T, o cluster.Options) *lab {
	need.Root(t)
	need.Program(t, "nft")
	mustBuild(t) // before there is traffic: the build takes long, and each connection keeps ports busy for minutes
	l := &lab{Cluster: cluster.Start(t, o), t: t, node: testkit.NewNamespace(t), client: testkit.NewNamespace(t)}
	l.prepare(l.node)
	l.prepare(l.client)
	l.join("eth0", l.client)
	address(l.node, "eth0", nodeIPs[0]+"/24", nodeIPs[1]+"/64")
	address(l.client, "eth0", clientIPs[0]+"/24", clientIPs[1]+"/64")
	for i := range families {
		// The node's default route points at the client, which drops everything else.
		route(l.node, "0", "eth0", clientIPs[i])
		route(l.client, "0", "eth0", nodeIPs[i])
	}
	l.relay = l.Relay(t, l.node.Do)
	create(l, kube.Node(nodeName).InternalIP(nodeIPs[:]...).Build())
	return l
}

// pod is a network namespace with a server on port 8080.
type pod struct {
	name string
	ips  [2]string
	ns   *testkit.Namespace
	stop func() // then the server refuses new connections
	// served is the number of connections that the server has accepted.
	served atomic.Int64
}

// newPod makes a pod and starts its server, which answers with its name and the client's address as it sees it.
func (l *lab) newPod(name string) *pod {
	l.mu.Lock()
	l.pods++
	n := l.pods
	l.mu.Unlock()
	p := &pod{name: name, ips: [2]string{fmt.Sprint("10.244.1.", n+1), fmt.Sprintf("fd00:244:1::%x", n+1)},
		ns: testkit.NewNamespace(l.t)}
	l.prepare(p.ns)
	link := fmt.Sprint("pod", n)
	outside, inside := l.join(link, p.ns)
	address(p.ns, "eth0", p.ips[0]+"/32", p.ips[1]+"/128")
	for i := range families {
		neighbour(p.ns, "eth0", gatewaysOnly[i], outside)
		route(p.ns, gatewaysOnly[i], "eth0", "")
		route(p.ns, "0", "eth0", gatewaysOnly[i])
		neighbour(l.node, link, p.ips[i], inside)
		route(l.node, p.ips[i], link, "")
	}
	p.stop = p.serve(l.t)
	return p
}

// prepare makes a namespace usable: its loopback interface, and kernel parameters.
func (l *lab) prepare(ns *testkit.Namespace) {
	ns.Do(func() error {
		errs := []error{up("lo")}
		for path, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv6/conf/all/forwarding": "1", "ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0",
			"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0", "ipv4/ip_local_port_range": "2000 65000",
		} {
			// The kernel shows each thread the parameters of its own namespace.
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0))
		}
		return errors.Join(errs...)
	})
}

// join connects the node with another namespace, and returns the hardware addresses of both ends.
func (l *lab) join(link string, to *testkit.Namespace) (outside, inside net.HardwareAddr) {
	l.node.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(to.FD())}
		veth.Name = link
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		made, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		outside = made.Attrs().HardwareAddr
		return up(link)
	})
	to.Do(func() error {
		made, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		inside = made.Attrs().HardwareAddr
		return up("eth0")
	})
	return outside, inside
}

// up acts on the namespace of the calling thread.
func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

func address(ns *testkit.Namespace, link string, prefixes ...string) {
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		var errs []error
		for _, p := range prefixes {
			prefix := netip.MustParsePrefix(p)
			ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
			errs = append(errs, netlink.AddrAdd(l, &netlink.Addr{IPNet: ipnet, Flags: unix.IFA_F_NODAD}),
				localaddr.Await(prefix.Addr()))
		}
		return errors.Join(errs...)
	})
}

// route adds a route to an address, or with "0" the default route of the family of via.
func route(ns *testkit.Namespace, to, link, via string) {
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(via), Scope: netlink.SCOPE_LINK}
		if via != "" {
			r.Scope, r.Flags = netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
		}
		if to != "0" {
			a := netip.MustParseAddr(to)
			r.Dst = &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route to %s by %s: %w", to, link, err)
		}
		return nil
	})
}

func neighbour(ns *testkit.Namespace, link, ip string, mac net.HardwareAddr) {
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(ip), HardwareAddr: mac})
	})
}

// serve listens on both addresses of the pod.
func (p *pod) serve(t *testing.T) (stop func()) {
	var listeners []net.Listener
	var serving sync.WaitGroup
	for _, ip := range p.ips {
		at := net.JoinHostPort(ip, "8080")
		p.ns.Do(func() error {
			listener, err := net.Listen("tcp", at)
			listeners = append(listeners, listener)
			return err
		})
	}
	for _, listener := range listeners {
		serving.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				p.served.Add(1)
				serving.Go(func() { p.answer(conn) })
			}
		})
	}
	stop = sync.OnceFunc(func() {
		for _, listener := range listeners {
			_ = listener.Close()
		}
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// answer says who the server is, and waits until the client has closed the connection. The end that closes first keeps
// the ports in TIME_WAIT. If that were the server, the client could soon connect from the same port again; the node
// would then forget what the old connection was masqueraded to, use that for another client, and the server would not
// take the SYN of a connection that it still has in TIME_WAIT.
func (p *pod) answer(conn net.Conn) {
	defer conn.Close()
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	_, _ = fmt.Fprintf(conn, "%s %s\n", p.name, from) // the client notices
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	_, _ = io.Copy(io.Discard, conn)
}
