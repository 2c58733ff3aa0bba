package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

func TestEverythingThatIsWrongWithOptionsIsNamed(t *testing.T) {
	o := Options{
		Scheduler:      "ip_vs_rr!",
		ExcludeCIDRs:   []netip.Prefix{{}},
		Timeouts:       dp.Timeouts{TCP: -time.Second, UDP: time.Millisecond},
		MasqueradeMark: 3,
		Common: frontend.Common{NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}},
			Families: []model.Family{model.IPv4, model.IPv4}},
	}
	_, err := New(t.Context(), o)
	require.Error(t, err)
	require.Equal(t, []string{
		`ipvs: families: invalid or duplicate family IPv4`,
		`nodePortAddresses[0]: invalid Prefix is not a prefix`,
		`scheduler: "ip_vs_rr!" is not the name of an IPVS scheduler`,
		`excludeCIDRs[0]: invalid Prefix is not a prefix`,
		`timeouts.TCP: -1s is negative`,
		`timeouts.UDP: 1ms is less than a second`,
		`masqueradeMark: 0x3 must have exactly one bit set`,
	}, strings.Split(err.Error(), "\n"))
	require.NoError(t, (&Options{}).complete())
}

// The kernel takes "none" for a virtual server that balances nothing.
func TestSchedulerNoneIsRefused(t *testing.T) {
	require.ErrorContains(t, (&Options{Scheduler: "none"}).complete(), `scheduler: "none" is not the name`)
}
