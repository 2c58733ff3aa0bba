package dataplane

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A map that counts differs from one that does not, nft lists it so that it can be loaded again, and the fake prints it
// like nft.
func TestMapsWithCounters(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		counting := *s.services
		counting.Counted = true
		uncounted := s.services
		s.services = &counting
		n, fake, ctx := newNetlink(t), NewFake(), context.Background()
		counters, err := n.Counters(ctx, s.key, s.services)
		require.NoError(t, err)
		assert.Empty(t, counters, "there is no table")
		for _, d := range []Interface{fake, n} {
			require.NoError(t, d.Apply(ctx, s.create()))
			read, err := d.ReadTable(ctx, s.key, nil)
			require.NoError(t, err)
			assert.True(t, read.Sets["service-ips"].Matches(s.services), "%T", d)
			assert.False(t, read.Sets["service-ips"].Matches(uncounted), "%T", d)
			counters, err := d.Counters(ctx, s.key, s.services)
			require.NoError(t, err)
			assert.Equal(t, map[string]uint64{string(s.vipKey()): 0}, counters, "%T", d)
		}
		listed := nft(t, "", "list", "ruleset")
		assert.Contains(t, listed, "counter packets 0 bytes 0")
		head := func(text string) string { // without the first line, which says the type in another way
			_, after, _ := strings.Cut(text, ": verdict\n")
			before, _, _ := strings.Cut(after, "elements")
			return before
		}
		assert.Equal(t, head(listed), head(fake.Dump()))
		nft(t, "", "flush", "ruleset")
		nft(t, listed, "-f", "-")
		assert.Equal(t, listed, nft(t, "", "list", "ruleset"))
	})
}
