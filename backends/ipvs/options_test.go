package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// withMark returns options with marks, beside that for packets to masquerade.
func withMark(marks, masquerade uint32) Options {
	return Options{Marks: marks, Common: frontend.Common{MasqueradeMark: masquerade}}
}

func TestEverythingThatIsWrongWithOptionsIsNamed(t *testing.T) {
	o := Options{
		Scheduler:    "ip_vs_rr!",
		ExcludeCIDRs: []netip.Prefix{{}},
		Timeouts:     Timeouts{TCP: -time.Second, UDP: time.Millisecond},
		Common: frontend.Common{MasqueradeMark: 3, NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{{}}},
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

func TestMarksAndLinksThatCannotBeAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"too few bits":           {Options{Marks: 0x7f}, "marks: 0x7f has 7 bits set, needs at least 8"},
		"the default masquerade": {Options{Marks: 0xffff}, "marks: 0xffff contains masqueradeMark 0x4000"},
		"another masquerade":     {withMark(0xffff, 1), "marks: 0xffff contains masqueradeMark 0x1"},
		"too long":               {Options{Link: "sixteen-letters-"}, `link: "sixteen-letters-" is not the name`},
		"a path":                 {Options{Link: "../eth0"}, `link: "../eth0" is not the name`},
		"a directory":            {Options{Link: ".."}, `link: ".." is not the name`},
		"of a sysctl":            {Options{Link: "all"}, `link: "all" is not the name`},
		"a pattern":              {Options{Link: "ipvs%d"}, `link: "ipvs%d" is not the name`},
		"white space":            {Options{Link: "a b"}, `link: "a b" is not the name`},
		"a line":                 {Options{Link: "ipvs0\n"}, `link: "ipvs0\n" is not the name`},
		"an alias":               {Options{Link: "eth0:1"}, `link: "eth0:1" is not the name`},
		"an option":              {Options{Link: "-4"}, `link: "-4" is not the name`},
		"NUL":                    {Options{Link: "kpl\x00"}, `link: "kpl\x00" is not the name`},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, test.o.complete(), test.want) })
	}
	for _, o := range []Options{{Marks: 0xff}, {Marks: 0x3fff}, {Marks: 0xff000000}, {Link: "fifteen-letters"},
		{Link: "kube-ipvs0"}, {Link: "i"}, withMark(0, 1), withMark(0, 1<<31)} {
		require.NoError(t, o.complete())
		require.Zero(t, o.Marks&o.MasqueradeMark)
	}
}

// The kernel takes "none" for a virtual server that balances nothing.
func TestSchedulerNoneIsRefused(t *testing.T) {
	require.ErrorContains(t, (&Options{Scheduler: "none"}).complete(), `scheduler: "none" is not the name`)
}
