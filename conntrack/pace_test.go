package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// slowTable is a table whose passes take time, and which notes when they begin and how late flows are deleted. A flow
// that a pass finds is gone at its end.
type slowTable struct {
	fakeTable
	cost time.Duration

	mu     sync.Mutex
	since  map[Flow]time.Time // that a flow has been stale
	late   time.Duration      // the latest one
	begins map[model.Family][]time.Duration
	start  time.Time
}

func newSlowTable(cost time.Duration) *slowTable {
	return &slowTable{cost: cost, since: map[Flow]time.Time{}, begins: map[model.Family][]time.Duration{},
		start: time.Now()}
}

// addStale adds a flow that is stale from now on.
func (t *slowTable) addStale(f Flow) {
	t.Add(f)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since[f] = time.Now()
}

func (t *slowTable) DeleteUDP(ctx context.Context, f model.Family, only []Selection,
	stale func(Flow) bool) (int, error) {
	t.mu.Lock()
	t.begins[f] = append(t.begins[f], time.Since(t.start))
	t.mu.Unlock()
	var found []Flow
	n, err := t.fakeTable.DeleteUDP(ctx, f, only, func(flow Flow) bool {
		is := stale(flow)
		if is {
			found = append(found, flow)
		}
		return is
	})
	time.Sleep(t.cost)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, flow := range found {
		t.late = max(t.late, time.Since(t.since[flow]))
		delete(t.since, flow)
	}
	return n, err
}

// flood replaces, in each family, the endpoint of a service a thousand times a second, for some time. Each has a flow.
type flood struct {
	r        *Reconciler
	table    *slowTable
	families []model.Family
	n        uint32
}

func (fl *flood) endpoint(t testing.TB, f model.Family, n uint32) *model.Endpoint {
	b := host(f, 0).AsSlice()
	binary.BigEndian.PutUint32(b[len(b)-4:], 10<<24|1<<20+n)
	addr, _ := netip.AddrFromSlice(b)
	name := model.PortName{Service: model.ServiceName{Namespace: "default", Name: f.String()}, Port: "p",
		Protocol: model.UDP}
	e, err := model.NewEndpoint(model.Endpoint{Port: name, Target: netip.AddrPortFrom(addr, 53),
		Sets: model.ClusterSet, Ready: true, Serving: true})
	require.NoError(t, err)
	return e
}

func (fl *flood) begin(t testing.TB) {
	for _, f := range fl.families {
		fl.r.SetService(spec{name: f.String()}.entry(t, f).Service)
		fl.r.SetEndpoint(fl.endpoint(t, f, 0))
	}
	require.NoError(t, fl.r.Sync(t.Context()))
}

func (fl *flood) goOn(t testing.TB, long time.Duration) {
	for range long / time.Millisecond {
		time.Sleep(time.Millisecond)
		for _, f := range fl.families {
			gone := fl.endpoint(t, f, fl.n)
			fl.r.DeleteEndpoint(gone.Key())
			fl.r.SetEndpoint(fl.endpoint(t, f, fl.n+1))
			fl.table.addStale(flowTo(f, uint16(fl.n), netip.AddrPortFrom(host(f, clusterIP), 53), gone.Target))
		}
		fl.n++
		require.NoError(t, fl.r.Sync(t.Context()))
	}
}

func TestPassesTakeATenthOfTheTimeAndNoFlowWaitsForLong(t *testing.T) {
	both, one := model.Families(), []model.Family{model.IPv4}
	for _, tc := range []struct {
		families   []model.Family
		cost, long time.Duration
		passes     int           // of each family
		late       time.Duration // at most
	}{
		{one, 0, time.Second, 1 + 200, 5 * time.Millisecond},
		{one, 100 * time.Microsecond, time.Second, 1 + 196, 6 * time.Millisecond},
		{one, 2 * time.Millisecond, time.Second, 1 + 50, 22 * time.Millisecond},
		{both, 2 * time.Millisecond, time.Second, 1 + 25, 44 * time.Millisecond},
		{one, 300 * time.Millisecond, 10 * time.Second, 1 + 3, 3300 * time.Millisecond},
		// Passes that are dearer than a tenth of the longest pause.
		{one, 3 * time.Second, 30 * time.Second, 1 + 2, 16 * time.Second},
		{one, 20 * time.Second, 40 * time.Second, 1 + 1, 50 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d families, passes of %v", len(tc.families), tc.cost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := newSlowTable(tc.cost)
				fl := &flood{r: wrap(t, table, tc.families...), table: table, families: tc.families}
				fl.begin(t)
				fl.goOn(t, tc.long)
				synctest.Wait() // the pass that is due now has begun
				for _, f := range tc.families {
					passes := len(table.begins[f])
					assert.InDelta(t, tc.passes, passes, 1)
					if tc.cost < maxPause/9 {
						total := time.Duration(passes*len(tc.families)) * tc.cost
						assert.LessOrEqual(t, total, tc.long/10+time.Duration(len(tc.families))*tc.cost)
					}
				}
				fl.r.Wait()
				assert.Empty(t, table.Flows())
				assert.LessOrEqual(t, table.late, tc.late)

				time.Sleep(maxPause)
				table.late = 0
				fl.goOn(t, time.Millisecond)
				fl.r.Wait()
				assert.Empty(t, table.Flows())
				assert.Equal(t, time.Duration(len(tc.families))*tc.cost, table.late, "after quiet times it begins at once")
			})
		})
	}
}

func TestAFailedPassIsRetriedInItsOwnTimeBesideAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newSlowTable(10 * time.Millisecond)
		fl := &flood{r: wrap(t, table), table: table, families: model.Families()}
		table.FailNext(errors.New("no memory"))
		fl.begin(t)
		fl.goOn(t, 550*time.Millisecond)
		assert.Equal(t, []time.Duration{0}, table.begins[model.IPv4])
		assert.Len(t, table.begins[model.IPv6], 5, "at 10 ms, and from 200 ms on every 100 ms")
		fl.goOn(t, time.Second)
		fl.r.Wait()
		assert.Empty(t, table.Flows())
		require.Greater(t, len(table.begins[model.IPv4]), 1)
		assert.InDelta(t, time.Second, table.begins[model.IPv4][1], float64(100*time.Millisecond),
			"a second, and the pause after a pass of the other family")
	})
}
