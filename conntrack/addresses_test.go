package conntrack

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// A client has sent to a node port since before the node had the address. Its flow was not rewritten, and each packet
// keeps it.
func testGainedAddress(t *testing.T, newTable func(t *testing.T) testTable) {
	for _, f := range model.Families() {
		p := newProxied(t, f, newTable(t))
		require.NoError(t, p.sync(all.with(endpoint{host: 1})))
		late := netip.AddrPortFrom(host(f, otherIP), 30053)
		rewritten := flowTo(f, 4000, late, netip.AddrPortFrom(host(f, 1), 5353))
		elsewhere := flowTo(f, 4001, netip.AddrPortFrom(host(f, 99), 30053), netip.AddrPort{})
		other := flowTo(f, 4002, netip.AddrPortFrom(host(f, otherIP), 30054), netip.AddrPort{})
		stale := flowTo(f, 4003, late, netip.AddrPort{})
		p.table.Add(rewritten, elsewhere, other, stale)
		require.NoError(t, p.syncAgain())
		require.Len(t, p.table.Flows(), 4, "it is another node's address")
		p.has(nodeIP, otherIP)
		require.NoError(t, p.syncAgain())
		require.ElementsMatch(t, []Flow{rewritten, elsewhere, other}, p.table.Flows())
	}
}

func TestFlowsToAnAddressThatTheNodeGainsAreDeleted(t *testing.T) {
	testGainedAddress(t, func(*testing.T) testTable { return &fakeTable{} })
}

// It may have come while the backend wrote rules without it. Then it is asked for another Sync.
func TestAnAddressThatComesDuringASyncIsCheckedAgainAfterTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxied(t, model.IPv4, &fakeTable{})
		require.NoError(t, p.sync(all.with(endpoint{host: 1})))
		p.applied = func() error { p.has(nodeIP, otherIP); return nil }
		require.NoError(t, p.syncAgain())
		stale := flowTo(p.f, 4000, netip.AddrPortFrom(host(p.f, otherIP), 30053), netip.AddrPort{})
		p.table.Add(stale)
		time.Sleep(flapWindow)
		require.NoError(t, p.syncAgain())
		require.Empty(t, p.table.Flows())
		passes := p.table.(*fakeTable).passesOf(p.f)
		require.NoError(t, p.syncAgain())
		require.Equal(t, passes, p.table.(*fakeTable).passesOf(p.f))
	})
}

// Without Options.Addresses nobody says when they change: they are read at each pass.
func TestAnAddressThatAPassFindsIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxied(t, model.IPv4, &fakeTable{})
		var node nodeHost
		p.r.opts.Addresses, p.r.host = nil, &node
		node.Set(p.f, nodeIP)
		served := all.with(endpoint{host: 1})
		require.NoError(t, p.sync(served, spec{name: "other", ip: 110}.with(endpoint{host: 2})))
		stale := flowTo(p.f, 4000, netip.AddrPortFrom(host(p.f, otherIP), 30053), netip.AddrPort{})
		p.table.Add(stale)
		node.Set(p.f, nodeIP, otherIP)
		require.NoError(t, p.syncAgain())
		require.Len(t, p.table.Flows(), 1)
		require.NoError(t, p.sync(served))
		require.Empty(t, p.table.Flows())
	})
}

// keepalived moves an address back and forth, while each pass over the large table takes a second.
func TestAFlappingAddressCostsABoundedShare(t *testing.T) {
	for _, f := range model.Families() {
		synctest.Test(t, func(t *testing.T) {
			table := newSlowTable(time.Second)
			p := newProxied(t, f, table)
			served := all.with(endpoint{host: 1})
			require.NoError(t, p.sync(served))
			passes := func() int { return table.passesOf(f) }
			first := passes()
			ctx, sync := context.WithCancel(t.Context())
			defer sync()
			flap := func(long time.Duration) {
				for began := time.Now(); time.Since(began) < long; {
					for _, has := range [][]int{{nodeIP, otherIP}, {nodeIP}} {
						p.has(has...)
						require.NoError(t, p.r.Sync(ctx))
						time.Sleep(500 * time.Millisecond)
					}
				}
			}
			time.Sleep(time.Minute)
			flap(10 * time.Minute)
			assert.LessOrEqual(t, passes()-first, 7+10, "at once, after 1, 2, 4, 8, 16, 32 s, and each minute")
			assert.GreaterOrEqual(t, passes()-first, 10)

			p.has(nodeIP, otherIP)
			stale := flowTo(f, 4000, netip.AddrPortFrom(host(f, otherIP), 30053), netip.AddrPort{})
			table.addStale(stale)
			require.NoError(t, p.r.Sync(ctx))
			time.Sleep(time.Second)
			// What else is due does not wait with it.
			gone := flowTo(f, 4001, netip.AddrPortFrom(host(f, clusterIP), 53), netip.AddrPortFrom(host(f, 1), 5353))
			table.addStale(gone)
			describe(p.r, p.state, nil)
			p.r.SetService(served.entry(t, f).Service)
			require.NoError(t, p.r.Sync(ctx))
			time.Sleep(maxPause + time.Second)
			assert.NotContains(t, table.Flows(), gone)
			p.r.Wait()
			assert.Empty(t, table.Flows())
			assert.LessOrEqual(t, table.late, flapMost+maxPause+2*time.Second)

			time.Sleep(flapWindow + time.Second)
			before := passes()
			p.has(nodeIP)
			require.NoError(t, p.r.Sync(ctx))
			p.has(nodeIP, otherIP)
			table.late = 0
			table.addStale(stale)
			require.NoError(t, p.r.Sync(ctx))
			p.r.Wait()
			assert.Equal(t, time.Second, table.late, "after quiet times it is checked at once")
			assert.Equal(t, before+1, passes())
			assert.Len(t, p.r.families[0].addresses.gains, 1)
		})
	}
}
