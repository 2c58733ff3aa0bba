package dropin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// TestPacketsReachAPod runs the program with the kernel, in a namespace that is the node; another one is a pod.
func TestPacketsReachAPod(t *testing.T) {
	node, pod := testkit.NewNamespace(t), testkit.NewNamespace(t)
	join(node, pod)
	for _, address := range []string{"10.244.1.5:8080", "[fd00:244:1::5]:8080"} {
		answer(t, pod, address, "the pod")
	}

	r := newRig(t,
		kube.Node("n1").InternalIP("10.244.1.1", "fd00:244:1::1").Build(),
		kube.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").Port("http", 80).Build(),
		kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build(),
		kube.EndpointSlice("default/web").Name("web-6").AddressType(discoveryv1.AddressTypeIPv6).Port("http", 8080).
			Endpoint("fd00:244:1::5").OnNode("n1").Build(),
	)
	kernel := &notifyingKernel{applied: make(chan struct{}, 1)}
	node.Do(func() (err error) {
		kernel.Interface, err = dataplane.NewNetlink()
		return err
	})
	defer kernel.Close()
	r.nftables, r.flows, r.host = kernel, &conntrack.Kernel{NetNS: node.FD()}, &hostaddr.System{NetNS: node.FD()}

	stop := r.start(t, "--proxy-mode=nftables", "--iptables-min-sync-period=0",
		"--cluster-cidr=10.244.0.0/16,fd00:244::/32")
	services := []string{"10.96.0.10:80", "[fd00:96::10]:80"}
	for _, service := range services {
		for {
			if got, err := ask(node, service, time.Second); err == nil {
				assert.Equal(t, "the pod", got)
				break
			}
			select {
			case <-kernel.applied: // perhaps now
			case <-time.After(time.Second): // or before, and the machine was too slow to answer in time
			case <-r.ended:
				t.Fatal("the program ended before packets reached the pod: ", r.logged())
			}
		}
	}

	require.NoError(t, stop())
	for _, service := range services {
		got, err := ask(node, service, time.Minute)
		require.NoError(t, err, "the rules stay")
		assert.Equal(t, "the pod", got)
	}
	require.NoError(t, r.run("--cleanup"))
	for _, key := range []dataplane.TableKey{tableIPv4, tableIPv6} {
		table, err := kernel.ReadTable(t.Context(), key, nil)
		require.NoError(t, err)
		assert.Nil(t, table)
	}
}

// notifyingKernel tells when something has been applied.
type notifyingKernel struct {
	dataplane.Interface
	applied chan struct{}
}

func (k *notifyingKernel) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	err := k.Interface.Apply(ctx, tx)
	select {
	case k.applied <- struct{}{}:
	default:
	}
	return err
}

// join connects a node with a pod. What the node has no other route for goes to the pod, too, which drops it.
func join(node, pod *testkit.Namespace) {
	node.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0",
			PeerNamespace: netlink.NsFd(pod.FD())}
		veth.Name = "eth0"
		return netlink.LinkAdd(veth)
	})
	for ns, addresses := range map[*testkit.Namespace][2]string{
		node: {"10.244.1.1/24", "fd00:244:1::1/64"},
		pod:  {"10.244.1.5/24", "fd00:244:1::5/64"},
	} {
		ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			errs := []error{netlink.LinkSetUp(link)}
			for _, a := range addresses {
				prefix := netip.MustParsePrefix(a)
				ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(),
					Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
				errs = append(errs, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet, Flags: 0x02 /* IFA_F_NODAD */}))
			}
			return errors.Join(errs...)
		})
	}
	node.Do(func() error {
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("10.244.1.5")}),
			netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("fd00:244:1::5")}),
		)
	})
}

// answer sends a text to every client that connects to an address in a namespace.
func answer(t *testing.T, ns *testkit.Namespace, address, text string) {
	var listener net.Listener
	ns.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
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
			_, _ = io.WriteString(conn, text) // who asked notices
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
}

// ask connects to an address from a namespace and returns the answer. It gives up if there is none for so
// long.
func ask(ns *testkit.Namespace, address string, timeout time.Duration) (text string, err error) {
	ns.Do(func() error {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", address, timeout); err != nil {
			return nil
		}
		defer conn.Close()
		var said []byte
		said, err = io.ReadAll(conn)
		text = string(said)
		return nil
	})
	return text, err
}
