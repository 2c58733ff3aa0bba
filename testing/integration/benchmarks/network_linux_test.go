package benchmarks

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testns"
)

// network is a node and all the pods of the cluster.
type network struct {
	node *testns.Namespace
	pods *testns.Namespace
}

// newNetwork makes one. It ends with the test. Packets to a service without a rule are refused at once, so that a probe
// can ask repeatedly and never waits for a retransmission.
func newNetwork(b *testing.B) *network {
	n := &network{node: testns.New(b), pods: testns.New(b)}
	n.node.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0",
			PeerNamespace: netlink.NsFd(n.pods.FD())}
		veth.Name = "eth0"
		return netlink.LinkAdd(veth)
	})
	for ns, address := range map[*testns.Namespace]string{n.node: nodeAddress, n.pods: podsAddress} {
		ns.Do(func() error {
			loopback, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return errors.Join(
				netlink.LinkSetUp(loopback), netlink.LinkSetUp(link),
				netlink.AddrAdd(link,
					&netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(24, 32)}}),
			)
		})
	}
	n.node.Do(func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(podsAddress)}) })
	n.pods.Do(func() error {
		loopback, err := netlink.LinkByName("lo")
		for _, p := range []netip.Prefix{podCIDR(), serviceCIDR()} {
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{
				Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST,
				LinkIndex: loopback.Attrs().Index,
				Dst:       &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
			}))
		}
		return err
	})
	n.answer(b)
	return n
}

// answer tells each client the address of the pod that it connected to.
func (n *network) answer(b *testing.B) {
	var listener net.Listener
	n.pods.Do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", podPort))
		return err
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(conn.LocalAddr().(*net.TCPAddr).IP.To4()) // the client notices
			_ = conn.Close()
		}
	}()
	b.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
}

// inNode runs f in the node's namespace, on one thread.
func (n *network) inNode(f func() error) (err error) {
	n.node.Do(func() error {
		err = f()
		return nil
	})
	return err
}

// ask connects to an address from the thread's namespace. It returns the address of the pod that answered, and how long
// the connection took. It uses blocking system calls, which measure most exactly.
func ask(to netip.AddrPort) (pod netip.Addr, took time.Duration, err error) {
	for range 10 {
		// The runtime's signals interrupt calls that have a timeout.
		if pod, took, err = askOnce(to); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return pod, took, err
}

func askOnce(to netip.AddrPort) (pod netip.Addr, took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pod, 0, err
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(500 * time.Millisecond))
	busy := unix.NsecToTimeval(int64(20 * time.Second)) // the pods share the machine; this is not the proxy's fault
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &busy),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), // leaves nothing behind
	)
	if err != nil {
		return pod, 0, err
	}
	start := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return pod, 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	took = time.Since(start)
	var answer [4]byte
	if n, err := unix.Read(fd, answer[:]); n != len(answer) {
		return pod, 0, fmt.Errorf("read from %s: %d bytes: %w", to, n, err)
	}
	return netip.AddrFrom4(answer), took, nil
}

// askService asks a service by its number.
func askService(service int) (netip.Addr, time.Duration, error) {
	return ask(netip.AddrPortFrom(vip(service), servicePort))
}
