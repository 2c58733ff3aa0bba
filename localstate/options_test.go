package localstate

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestOptions(t *testing.T) {
	cidr := netip.MustParsePrefix("10.1.0.0/16")
	for _, tc := range []struct {
		name string
		opts Options
		want []string // parts of the error; none: no error
	}{
		{"the zero value is usable", Options{}, nil},
		{"every field", Options{NodeName: me, Families: []model.Family{model.IPv6, model.IPv4},
			MasqueradeAll: true,
			DetectLocal:   DetectLocal{NodeCIDR: true}}, nil},
		{"a family that is none", Options{Families: []model.Family{model.IPv4, 5}},
			[]string{"invalid options: families: Family(5) is invalid"}},
		{"two ways to detect local traffic", Options{
			DetectLocal: DetectLocal{ClusterCIDRs: []netip.Prefix{cidr}, Bridge: "cbr0"}},
			[]string{"more than one way"}},
		{"two other ways", Options{NodeName: me, DetectLocal: DetectLocal{NodeCIDR: true, InterfacePrefix: "veth"}},
			[]string{"more than one way"}},
		{"an invalid cluster CIDR", Options{DetectLocal: DetectLocal{ClusterCIDRs: []netip.Prefix{cidr, {}}}},
			[]string{"invalid cluster CIDR"}},
		{"node IPs that are none", Options{NodeIPs: []netip.Addr{{}, netip.MustParseAddr("fe80::1%eth0"),
			netip.MustParseAddr("::ffff:192.0.2.1")}},
			[]string{"node IPs: invalid IP", "node IPs: fe80::1%eth0", "node IPs: ::ffff:192.0.2.1"}},
		{"the node's CIDR without the node's name", Options{DetectLocal: DetectLocal{NodeCIDR: true}},
			[]string{"needs a node name"}},
		{"all that is wrong is said", Options{Families: []model.Family{0},
			DetectLocal: DetectLocal{NodeCIDR: true, Bridge: "cbr0", ClusterCIDRs: []netip.Prefix{{}}}},
			[]string{"families", "more than one way", "invalid cluster CIDR", "needs a node name"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state, err := New(t.Context(), tc.opts, ClusterOptions{ServiceProxyName: "mine", NoExternalIPs: true})
			if len(tc.want) == 0 {
				require.NoError(t, err)
				require.NotNil(t, state)
				return
			}
			require.Nil(t, state)
			for _, part := range tc.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}
