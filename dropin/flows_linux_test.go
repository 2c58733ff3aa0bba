package dropin

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

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
			var server, client net.PacketConn
			pod.Do(func() (err error) {
				if err = netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("10.244.1.1"),
					Dst: &net.IPNet{IP: net.ParseIP(late).To4(), Mask: net.CIDRMask(32, 32)}}); err != nil {
					return err
				}
				if server, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "10.244.1.5:5353"); err == nil {
					client, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "10.244.1.5:0")
				}
				return err
			})
			defer client.Close()
			defer server.Close()
			go func() {
				for b := make([]byte, 10); ; {
					n, from, err := server.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = server.WriteTo(b[:n], from)
				}
			}()
			to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(late + ":30053"))
			served := func(patience time.Duration) bool {
				_, err := client.WriteTo([]byte("hello"), to)
				require.NoError(t, err)
				require.NoError(t, client.SetReadDeadline(time.Now().Add(patience)))
				_, _, err = client.ReadFrom(make([]byte, 10))
				return err == nil
			}

			r := newRig(t, kube.Node("n1").InternalIP("fd00:244:1::1").Build(),
				kube.Service("default/dns").ClusterIP("10.96.0.10").UDPPort("dns", 53).NodePort(30053).Build(),
				kube.EndpointSlice("default/dns").UDPPort("dns", 5353).Endpoint("10.244.1.5").OnNode("n1").Build())
			var kernel dataplane.Interface
			node.Do(func() (err error) {
				kernel, err = dataplane.NewNetlink()
				return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
			})
			defer kernel.Close()
			if tc.onHost {
				onNode()
			}
			r.nftables, r.flows, r.host = kernel, &conntrack.Kernel{NetNS: node.FD()}, &hostaddr.System{NetNS: node.FD()}
			watching := r.watches("nodes")
			stop := r.start(t, "--proxy-mode=nftables", "--iptables-min-sync-period=0", "--cluster-cidr=10.244.0.0/16",
				"--nodeport-addresses="+tc.addresses)
			r.waitLogged(t, "Everything is applied for the first time")
			<-watching
			require.False(t, served(100*time.Millisecond))
			tc.change(t, r, onNode)
			require.Eventually(t, func() bool { return served(100 * time.Millisecond) }, time.Minute, time.Millisecond)
			require.NoError(t, stop())
		})
	}
}
