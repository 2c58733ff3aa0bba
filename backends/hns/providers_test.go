package hns

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
)

func TestProviderOfAnAddress(t *testing.T) {
	subnet := func(prefix, node string) dp.RemoteSubnet {
		return dp.RemoteSubnet{Prefix: netip.MustParsePrefix(prefix), Provider: netip.MustParseAddr(node)}
	}
	p := newProviders([]dp.RemoteSubnet{
		subnet("10.244.0.0/16", "192.0.2.1"), subnet("10.244.2.0/24", "192.0.2.2"), subnet("10.244.3.9/24", "192.0.2.3"),
		subnet("fd00:244:4::/64", "2001:db8::4"),
	})
	for addr, want := range map[string]string{
		"10.244.1.5":    "192.0.2.1",
		"10.244.2.5":    "192.0.2.2", // the longest prefix counts
		"10.244.3.5":    "192.0.2.3",
		"192.0.2.2":     "192.0.2.2",
		"fd00:244:4::5": "2001:db8::4",
		"10.245.0.1":    "",
		"fd00:244:5::5": "",
	} {
		got := p.of(netip.MustParseAddr(addr))
		if want == "" {
			assert.False(t, got.IsValid(), addr)
		} else {
			assert.Equal(t, want, got.String(), addr)
		}
	}
	none := newProviders(nil)
	assert.False(t, none.of(netip.MustParseAddr("10.244.1.5")).IsValid())
}
