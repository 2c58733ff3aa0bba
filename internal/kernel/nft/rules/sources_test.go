package rules_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
)

// lets reports whether the chain of a list returns with packets from an address.
func lets(t *testing.T, s *rules.Sources, a netip.Addr) bool {
	ch, set, ranges := s.Chain()
	for _, r := range ch.Rules {
		switch match := r.Statements[0].(type) {
		case dp.Return:
			return true
		case dp.Drop:
			return false
		case dp.InPrefix:
			if match.Prefix.Contains(a) {
				return true
			}
		case dp.InSet:
			require.Equal(t, set, match.Set)
			key := string(a.AsSlice())
			if slices.ContainsFunc(ranges, func(e dp.Element) bool {
				return e.Key[:len(key)] <= key && key <= e.Key[len(key):]
			}) {
				return true
			}
		}
	}
	require.Fail(t, "the chain has no end")
	return false
}

// The chain accepts packets from any of its prefixes, whether the list is short or has a set. Prefixes that overlap,
// are adjacent or are listed twice make the same list as the addresses in any other form.
func TestSourceRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	long := 0
	for range 300 {
		prefixes := make([]netip.Prefix, 1+random.IntN(100))
		shortest := 24 + 6*random.IntN(2) // of 24 bits, few are enough to contain all others
		for i := range prefixes {
			a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(3)), byte(random.IntN(256))})
			prefixes[i] = netip.PrefixFrom(a, shortest+random.IntN(33-shortest))
		}
		s := rules.NewSources(prefixes)
		_, set, ranges := s.Chain()
		if set != nil {
			long++
		}
		for i := 1; i < len(ranges); i++ {
			require.Less(t, ranges[i-1].Key[4:], ranges[i].Key[:4])
		}
		var single []netip.Prefix
		for a := netip.MustParseAddr("9.255.255.255"); a.Less(netip.MustParseAddr("10.0.3.1")); a = a.Next() {
			within := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			require.Equal(t, within, lets(t, s, a), "%v in %v", a, prefixes)
			if within {
				single = append(single, netip.PrefixFrom(a, 32))
			}
		}
		random.Shuffle(len(single), func(i, k int) { single[i], single[k] = single[k], single[i] })
		require.Equal(t, s.ID, rules.NewSources(append(single, single[0])).ID)
		require.NotEqual(t, s.ID, rules.NewSources(append(single, netip.MustParsePrefix("192.0.2.1/32"))).ID)
	}
	assert.Positive(t, long)
	assert.Less(t, long, 300)
}

func TestAllSourcesMayCome(t *testing.T) {
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		p := netip.MustParsePrefix(all)
		s := rules.NewSources([]netip.Prefix{netip.PrefixFrom(p.Addr().Next(), p.Addr().BitLen()), p})
		ch, set, _ := s.Chain()
		assert.Nil(t, set)
		assert.Len(t, ch.Rules, 1)
		assert.True(t, lets(t, s, p.Addr().Next()))
	}
}

// An object of 1.5 MB holds this many. Comparing each with all others would take a minute.
func TestTensOfThousandsOfSourceRanges(t *testing.T) {
	prefixes := make([]netip.Prefix, 80_000)
	for i := range prefixes {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		prefixes[i] = netip.PrefixFrom(a, 32)
	}
	ch, set, ranges := rules.NewSources(prefixes).Chain()
	assert.Len(t, ranges, len(prefixes))
	assert.NotNil(t, set)
	assert.Len(t, ch.Rules, 2)
}
