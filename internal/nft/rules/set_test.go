package rules_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
)

// ranges returns the ranges of the elements for prefixes.
func ranges(t *testing.T, prefixes ...netip.Prefix) (list [][2]netip.Addr) {
	t.Helper()
	for _, e := range rules.SourceElements("vip", prefixes) {
		require.Len(t, e.Key, len("vip")+4+len("vip")+4)
		require.Equal(t, "vipvip", e.Key[:3]+e.Key[7:10])
		first, _ := netip.AddrFromSlice([]byte(e.Key[3:7]))
		last, _ := netip.AddrFromSlice([]byte(e.Key[10:]))
		list = append(list, [2]netip.Addr{first, last})
	}
	return list
}

// The ranges have the addresses of all prefixes and no others, and neither overlap nor touch.
func TestSourceRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		prefixes := make([]netip.Prefix, random.IntN(30))
		for i := range prefixes {
			a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(3)), byte(random.IntN(256))})
			prefixes[i] = netip.PrefixFrom(a, 22+random.IntN(11))
		}
		list := ranges(t, prefixes...)
		for i := 1; i < len(list); i++ {
			require.True(t, list[i-1][1].Next().Less(list[i][0]), "%v: %v", prefixes, list)
		}
		for a := netip.MustParseAddr("9.255.255.255"); a.Less(netip.MustParseAddr("10.0.5.0")); a = a.Next() {
			contains := func(p netip.Prefix) bool { return p.Contains(a) }
			within := func(r [2]netip.Addr) bool { return !a.Less(r[0]) && !r[1].Less(a) }
			require.Equal(t, slices.ContainsFunc(prefixes, contains), slices.ContainsFunc(list, within),
				"%v in %v: %v", a, prefixes, list)
		}
	}
}

// An object of 1.5 MB holds this many. Looking through all of them for each would take a minute.
func TestTensOfThousandsOfSourceRanges(t *testing.T) {
	prefixes := make([]netip.Prefix, 80_000)
	for i := range prefixes {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		prefixes[i] = netip.PrefixFrom(a, 32)
	}
	require.Len(t, ranges(t, prefixes...), len(prefixes))
}
