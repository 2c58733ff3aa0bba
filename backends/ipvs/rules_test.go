package ipvs

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranges within others are left out, whatever the order; those that are left cover all.
func TestSourceRangesDoNotOverlap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		ranges := make([]netip.Prefix, random.IntN(30))
		for i := range ranges {
			a := netip.AddrFrom4([4]byte{10, byte(random.IntN(3)), byte(random.IntN(3)), byte(random.IntN(4))})
			ranges[i] = netip.PrefixFrom(a, 8+random.IntN(25))
		}
		var want []string
		for i, r := range ranges {
			covered := false
			for j, o := range ranges {
				wider := o.Bits() < r.Bits() || o.Masked() == r.Masked() && j < i
				covered = covered || wider && o.Contains(r.Addr())
			}
			if !covered {
				want = append(want, "vip"+addrKey(r.Masked().Addr())+"vip"+addrKey(lastAddr(r)))
			}
		}
		require.ElementsMatch(t, want, sourceKeys("vip", ranges))
	}
}

// An object of 1.5 MB holds this many. Looking through all of them for each would take a minute.
func TestTensOfThousandsOfSourceRanges(t *testing.T) {
	ranges := make([]netip.Prefix, 80_000)
	for i := range ranges {
		ranges[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	require.Len(t, sourceKeys("vip", ranges), len(ranges))
}
