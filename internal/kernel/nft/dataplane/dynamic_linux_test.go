package dataplane

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// client is an element of the set sticky or, if scope is not 0, of shared.
func (s sample) client(n int, scope uint32) Element {
	a := s.pod.As16()
	a[14], a[15] = byte(n>>8), byte(n)
	addr := netip.AddrFrom16(a)
	if s.pod.Is4() {
		addr = addr.Unmap()
	}
	key := AppendAddr(nil, addr)
	if scope > 0 {
		key = AppendNumber(key, scope)
	}
	return Element{Key: string(AppendNumber(key, 7))}
}

// Elements of a dynamic set can be given another timeout in one transaction, even where the set is full.
func TestElementsOfADynamicSetAreGivenTimeouts(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		for _, d := range []Interface{NewFake(), newNetlink(t)} {
			ctx := t.Context()
			require.NoError(t, d.Apply(ctx, s.create()))
			for _, set := range []*Set{s.sticky, s.shared} {
				full, scope := 10, uint32(0)
				if _, kernel := d.(*Netlink); kernel && set == s.sticky {
					full = maxDynamic
				}
				if set == s.shared {
					scope = 8
				}
				left := func() map[string]time.Duration {
					found := map[string]time.Duration{}
					for complete, again := false, 0; !complete; again++ {
						require.Less(t, again, 1000, "the kernel reorganises the set")
						clear(found)
						var err error
						complete, err = d.ReadDynamic(ctx, s.key, set, func(e Element, left time.Duration) {
							found[e.Key] = left
						})
						require.NoError(t, err)
					}
					return found
				}
				assert.Empty(t, left())
				tx := NewTransaction(s.key)
				var clients []Element
				for n := range full {
					clients = append(clients, s.client(n, scope))
				}
				tx.AddDynamic(set, 2*time.Hour, clients...)
				require.NoError(t, d.Apply(ctx, tx))
				assert.Equal(t, full, len(left()), "%T", d)

				tx = NewTransaction(s.key)
				tx.DeleteElements(set, s.client(1, scope), s.client(2, scope))
				tx.AddDynamic(set, time.Hour, s.client(1, scope))
				tx.AddDynamic(set, 30*time.Minute, s.client(2, scope))
				require.NoError(t, d.Apply(ctx, tx))
				now := left()
				assert.Equal(t, full, len(now))
				for n, most := range []time.Duration{2 * time.Hour, time.Hour, 30 * time.Minute} {
					assert.Greater(t, now[s.client(n, scope).Key], most-15*time.Minute, "%T", d)
					assert.LessOrEqual(t, now[s.client(n, scope).Key], most, "%T", d)
				}

				tx = NewTransaction(s.key)
				tx.DeleteElements(set, s.client(3, scope), s.client(full, scope))
				require.ErrorIs(t, d.Apply(ctx, tx), syscall.ENOENT, "%T: the second has gone", d)
				assert.Positive(t, left()[s.client(3, scope).Key], "so the first one stays")
			}
			tx := NewTransaction(s.key)
			tx.AddDynamic(s.same, time.Hour, Element{Key: string(AppendAddr(AppendAddr(nil, s.vip), s.vip))})
			require.ErrorIs(t, d.Apply(ctx, tx), syscall.EINVAL, "%T: not a dynamic set", d)
			_, err := d.ReadDynamic(ctx, s.key, &Set{Name: "none"}, func(Element, time.Duration) {})
			require.ErrorIs(t, err, syscall.ENOENT, "%T", d)
		}
	})
}

func TestATransactionOfTimeoutsIsSplitLikeAnyOther(t *testing.T) {
	bothFamilies(t, func(t *testing.T, s sample) {
		whole, parts := NewFake(), NewFake()
		tx := NewTransaction(s.key)
		tx.AddDynamic(s.sticky, time.Hour, s.client(1, 0), s.client(2, 0), s.client(3, 0))
		for _, f := range []*Fake{whole, parts} {
			require.NoError(t, f.Apply(t.Context(), s.create()))
		}
		require.NoError(t, whole.Apply(t.Context(), tx))
		small := pieces(tx)
		assert.Len(t, small, 3)
		for _, piece := range small {
			require.NoError(t, parts.Apply(t.Context(), piece))
		}
		assert.Equal(t, whole.Dump(s.key), parts.Dump(s.key))
		assert.Contains(t, whole.Dump(s.key), " . 7 timeout 1h")
	})
}
