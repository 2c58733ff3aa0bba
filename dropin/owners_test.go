package dropin

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Nothing else changes, and the next full sync is far away: the program requests a Sync itself, in every mode whose
// backend follows the addresses, also where all of them serve node ports (S59).
func TestAnAddressThatTheNodeGainsHasOneOwnerAtOnce(t *testing.T) {
	needModesOfLinux(t)
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, append(cluster(), kube.Service("evil/x").ClusterIP("10.96.0.11").ExternalIP("192.0.2.77").
				Port("http", 30080).Build())...)
			eth0 := nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}
			r.hostAddresses.Set(eth0)
			stop := r.start(t, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=0.0.0.0/0,::/0",
				"--iptables-min-sync-period=0s", "--ipvs-min-sync-period=0s")
			r.waitLogged(t, "Everything is applied for the first time")
			require.NotContains(t, r.logged(), "192.0.2.77:30080/TCP belongs to")
			r.hostAddresses.Set(eth0, nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.77"), Interface: "eth0"})
			r.waitLogged(t, "192.0.2.77:30080/TCP belongs to")
			require.NoError(t, stop())
		})
	}
}
