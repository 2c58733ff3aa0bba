package dropin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// answerUDP answers each packet to an address and port of a namespace with a text.
func answerUDP(t *testing.T, ns *testkit.Namespace, address, text string) {
	var server net.PacketConn
	ns.Do(func() (err error) {
		server, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", address)
		return err
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_, from, err := server.ReadFrom(make([]byte, 10))
			if err != nil {
				return
			}
			_, _ = server.WriteTo([]byte(text), from)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
}

// udpClient returns a function that sends a packet from the pod of join to an address and port, always from the same
// port, and returns the answer, "" if there is none.
func udpClient(t *testing.T, pod *testkit.Namespace, address string) (send func() string) {
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address))
	var client net.PacketConn
	pod.Do(func() (err error) {
		if err = netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("10.244.1.1"),
			Dst: &net.IPNet{IP: to.IP.To4(), Mask: net.CIDRMask(32, 32)}}); err == nil {
			client, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "10.244.1.5:0")
		}
		return err
	})
	t.Cleanup(func() { _ = client.Close() })
	return func() string {
		_, err := client.WriteTo([]byte("hello"), to)
		require.NoError(t, err)
		require.NoError(t, client.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		b := make([]byte, 10)
		n, _, _ := client.ReadFrom(b)
		return string(b[:n])
	}
}

// forwards makes a node forward packets, and returns its nftables.
func forwards(t *testing.T, node *testkit.Namespace) dataplane.Interface {
	var kernel dataplane.Interface
	node.Do(func() (err error) {
		kernel, err = dataplane.NewNetlink()
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	})
	t.Cleanup(func() { _ = kernel.Close() })
	return kernel
}

// A client sends to a node port, always from one port, before the node serves it at that address: the kernel keeps its
// flow, as it was, for as long as it goes on. The pod is client and endpoint.
func TestAUDPClientOfBeforeIsServedOnceTheNodeHasItsAddress(t *testing.T) {
	const late = "192.0.2.10"
	for name, tc := range map[string]struct {
		addresses string
		onHost    bool // from the beginning
		change    func(t *testing.T, r *rig, add func())
	}{
		"the Node gets it": {"primary", true, func(t *testing.T, r *rig, _ func()) {
			node := kube.Node("n1").InternalIP(late, "fd00:244:1::1").Build()
			_, err := r.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			require.NoError(t, err)
		}},
		"the host gets it": {"0.0.0.0/0,::/0", false, func(_ *testing.T, _ *rig, add func()) { add() }},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod := testkit.NewNamespace(t), testkit.NewNamespace(t)
			join(node, pod)
			onNode := func() {
				node.Do(func() error {
					lo, err := netlink.LinkByName("lo")
					if err != nil {
						return err
					}
					return netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(late).To4(),
						Mask: net.CIDRMask(32, 32)}})
				})
			}
			answerUDP(t, pod, "10.244.1.5:5353", "hello")
			send := udpClient(t, pod, late+":30053")

			r := newRig(t, kube.Node("n1").InternalIP("fd00:244:1::1").Build(),
				kube.Service("default/dns").ClusterIP("10.96.0.10").UDPPort("dns", 53).NodePort(30053).Build(),
				kube.EndpointSlice("default/dns").UDPPort("dns", 5353).Endpoint("10.244.1.5").OnNode("n1").Build())
			kernel := forwards(t, node)
			if tc.onHost {
				onNode()
			}
			r.nftables, r.flows, r.host = kernel, &conntrack.Kernel{NetNS: node.FD()}, &hostaddr.System{NetNS: node.FD()}
			watching := r.watches("nodes")
			stop := r.start(t, "--proxy-mode=nftables", "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16",
				"--nodeport-addresses="+tc.addresses)
			r.waitLogged(t, "Everything is applied for the first time")
			<-watching
			require.Empty(t, send())
			tc.change(t, r, onNode)
			require.Eventually(t, func() bool { return send() == "hello" }, time.Minute, time.Millisecond)
			require.NoError(t, stop())
		})
	}
}

// Two Services list an address, and it passes from one to the other (S59), while a client sends there, always from one
// port. The pod is client and both endpoints.
func TestAUDPClientFollowsAnAddressToItsNewOwner(t *testing.T) {
	const contested = "10.96.0.20"
	year := func(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }
	service := func(name, ip string) *kube.ServiceBuilder {
		return kube.Service("default/"+name).ClusterIP(ip).UDPPort("dns", 53)
	}
	owner := func(uid string, created int) *corev1.Service {
		return service("a", "10.96.0.10").ExternalIP(contested).UID(uid).Created(year(created)).Build()
	}
	for name, tc := range map[string]struct {
		other, changed *corev1.Service
		page           bool // between package conntrack and the backend
	}{
		"the owner is created again": {other: service("b", "10.96.0.11").ExternalIP(contested).Created(year(2002)).Build(),
			changed: owner("2", 2003), page: true},
		"it becomes the cluster IP of the other one": {other: service("b", "10.96.0.11").Build(),
			changed: service("b", contested).Build()},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod := testkit.NewNamespace(t), testkit.NewNamespace(t)
			join(node, pod)
			answerUDP(t, pod, "10.244.1.5:5353", "a")
			answerUDP(t, pod, "10.244.1.5:5354", "b")
			send := udpClient(t, pod, contested+":53")
			r := newRig(t, kube.Node("n1").InternalIP("10.244.1.1", "fd00:244:1::1").Build(),
				owner("1", 2001), tc.other,
				kube.EndpointSlice("default/a").UDPPort("dns", 5353).Endpoint("10.244.1.5").OnNode("n1").Build(),
				kube.EndpointSlice("default/b").UDPPort("dns", 5354).Endpoint("10.244.1.5").OnNode("n1").Build())
			kernel := forwards(t, node)
			r.nftables, r.flows, r.host = kernel, &conntrack.Kernel{NetNS: node.FD()}, &hostaddr.System{NetNS: node.FD()}
			watching := r.watches("services")
			stop := r.start(t, "--proxy-mode=nftables", "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16",
				fmt.Sprint("--page=", tc.page))
			r.waitLogged(t, "Everything is applied for the first time")
			<-watching
			require.Eventually(t, func() bool { return send() == "a" }, time.Minute, time.Millisecond)
			_, err := r.client.CoreV1().Services("default").Update(t.Context(), tc.changed, metav1.UpdateOptions{})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return send() == "b" }, time.Minute, time.Millisecond)
			require.NoError(t, stop())
		})
	}
}
