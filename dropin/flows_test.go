package dropin

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// keptFlows is a table of flows that clients keep.
type keptFlows struct {
	mu      sync.Mutex
	flows   []conntrack.Flow
	deleted map[netip.AddrPort]int
	early   []netip.AddrPort // deleted before there were rules
	rules   func(netip.AddrPort) bool
	passes  [2]int
}

// DeleteUDP implements conntrack.Table.
func (k *keptFlows) DeleteUDP(_ context.Context, f model.Family, _ []conntrack.Selection,
	stale func(conntrack.Flow) bool) (deleted int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passes[slices.Index(model.Families(), f)]++
	k.flows = slices.DeleteFunc(k.flows, func(flow conntrack.Flow) bool {
		if model.FamilyOf(flow.Destination.Addr()) != f || !stale(flow) {
			return false
		}
		deleted++
		if !k.rules(flow.Destination) {
			k.early = append(k.early, flow.Destination)
		}
		k.deleted[flow.Destination]++
		return true
	})
	return deleted, nil
}

// begin adds a flow that no rule rewrites.
func (k *keptFlows) begin(to netip.AddrPort) {
	client := netip.MustParseAddrPort("192.0.2.200:4000")
	if to.Addr().Is6() {
		client = netip.MustParseAddrPort("[2001:db8::200]:4000")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flows = append(k.flows, conntrack.Flow{Source: client, Destination: to, ReplySource: to, ReplyDestination: client})
}

// checked reports whether all flows have been checked once.
func (k *keptFlows) checked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.passes[0] > 0 && k.passes[1] > 0
}

func (k *keptFlows) deletedAt(to netip.AddrPort) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deleted[to]
}

// The client keeps sending, so its earlier flow never ends by itself. Only the addresses change, and the next full sync
// is far off.
func TestAnAddressThatComesLateFreesUDPFlows(t *testing.T) {
	needModesOfLinux(t)
	eth0 := nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}
	moved := nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.77"), Interface: "eth0"}
	second := nodeaddr.HostAddress{Addr: netip.MustParseAddr("2001:db8::1"), Interface: "eth0"}
	host := func(a nodeaddr.HostAddress) func(*testing.T, *rig) {
		return func(_ *testing.T, r *rig) { r.hostAddresses.Set(eth0, a) }
	}
	for _, tc := range []struct {
		name      string
		addresses string
		change    func(*testing.T, *rig)
		to        string
	}{
		{"the host gets one, and all serve node ports", "0.0.0.0/0,::/0", host(moved), "192.0.2.77:30053"},
		{"the host gets one of the second family", "0.0.0.0/0,::/0", host(second), "[2001:db8::1]:30053"},
		{"the host gets one in a range", "192.0.2.0/24,2001:db8::/64", host(moved), "192.0.2.77:30053"},
		{"the Node gets one", "primary", func(t *testing.T, r *rig) {
			_, err := r.client.CoreV1().Nodes().Update(t.Context(), kube.Node("n1").InternalIP("192.0.2.1", "2001:db8::1").
				PodCIDR("10.244.1.0/24").Build(), metav1.UpdateOptions{})
			require.NoError(t, err)
		}, "[2001:db8::1]:30053"},
		{"the Node gets another one", "primary", func(t *testing.T, r *rig) {
			_, err := r.client.CoreV1().Nodes().Update(t.Context(), kube.Node("n1").InternalIP("192.0.2.77").
				PodCIDR("10.244.1.0/24").Build(), metav1.UpdateOptions{})
			require.NoError(t, err)
		}, "192.0.2.77:30053"},
	} {
		for _, mode := range []string{"iptables", "nftables", "ipvs"} {
			t.Run(tc.name+", in mode "+mode, func(t *testing.T) {
				r := newRig(t, kube.Node("n1").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build(),
					kube.ServiceCIDR("kubernetes", "10.96.0.0/12", "fd00:96::/112"),
					kube.Service("default/dns").ClusterIP("10.96.0.10", "fd00:96::10").UDPPort("dns", 53).
						NodePort(30053).Build(),
					kube.EndpointSlice("default/dns").UDPPort("dns", 5353).Endpoint("10.244.1.5").OnNode("n1").Build())
				flows := &keptFlows{deleted: map[netip.AddrPort]int{}}
				r.flows, flows.rules = flows, func(to netip.AddrPort) bool { // those of other modes ask the kernel for its own
					return mode != "ipvs" || strings.Contains(r.ipvs.Dump(), to.String())
				}
				r.hostAddresses.Set(eth0)
				watching := r.watches("nodes")
				stop := r.start(t, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses="+tc.addresses,
					"--iptables-min-sync-period=0s", "--ipvs-min-sync-period=0s")
				r.waitLogged(t, "Everything is applied for the first time")
				require.Eventually(t, flows.checked, time.Minute, time.Millisecond)
				if strings.HasPrefix(tc.name, "the Node") {
					<-watching
				}
				to := netip.MustParseAddrPort(tc.to)
				flows.begin(to)
				tc.change(t, r)
				require.Eventually(t, func() bool { return flows.deletedAt(to) > 0 }, time.Minute, time.Millisecond)
				require.NoError(t, stop())
				require.Empty(t, flows.early, "the next packet of the client must find a rule")
			})
		}
	}
}

// Flows that began while the rules were gone are not rewritten. They are checked when the backend has restored the
// rules, although nothing requests a Sync.
func TestRulesThatOthersRemoveFreeUDPFlowsWhenTheyAreBack(t *testing.T) {
	needModesOfLinux(t)
	for mode, remove := range map[string]func(*testing.T, *rig){
		"iptables": func(t *testing.T, r *rig) { require.NoError(t, r.iptables[0].Load("*nat\nCOMMIT\n*filter\nCOMMIT\n")) },
		"nftables": func(t *testing.T, r *rig) {
			tx := dataplane.NewTransaction(tableIPv4)
			tx.DeleteTable()
			require.NoError(t, r.nft.ApplyAsSomebodyElse(tx))
		},
		"ipvs": func(_ *testing.T, r *rig) { r.ipvs.DeleteAsSomebodyElse(netip.MustParseAddr("10.96.0.10")) },
	} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, append(cluster(), kube.Service("default/dns").ClusterIP("10.96.0.10").UDPPort("dns", 53).Build(),
				kube.EndpointSlice("default/dns").UDPPort("dns", 5353).Endpoint("10.244.1.5").OnNode("n1").Build())...)
			flows := &keptFlows{deleted: map[netip.AddrPort]int{}, rules: func(netip.AddrPort) bool { return true }}
			r.flows = flows
			stop := r.start(t, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16")
			r.waitLogged(t, "Everything is applied for the first time")
			require.Eventually(t, flows.checked, time.Minute, time.Millisecond)
			to := netip.MustParseAddrPort("10.96.0.10:53")
			flows.begin(to)
			remove(t, r)
			require.Eventually(t, func() bool { return flows.deletedAt(to) > 0 }, time.Minute, time.Millisecond)
			require.NoError(t, stop())
		})
	}
}
