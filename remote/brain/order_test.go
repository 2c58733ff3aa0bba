package brain

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Changes are delivered in the order in which clients have connected, each time beginning with a random one.
func TestDeliveriesFollowTheOrderOfArrival(t *testing.T) {
	begins := map[uint64]bool{}
	for range 200 {
		var d toDeliver
		for i := range uint64(10) {
			d = append(d, &client{number: i})
		}
		rand.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] })
		d.order()
		begins[d[0].number] = true
		for i := range d {
			require.Equal(t, (d[0].number+uint64(i))%10, d[i].number)
		}
	}
	assert.Greater(t, len(begins), 1)
	toDeliver(nil).order()
}

// Finding out what to send allocates no memory, because that happens for each client and change.
func TestTheNewestStateIsFoundWithoutAllocations(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	serverHandler{s}.Synced()
	c := &client{server: &s.common, node: "n1", stream: &heldStream{}, ctx: t.Context()}
	require.NoError(t, s.join(c, localstate.Options{}))
	defer s.leave(c)
	_, _, ok, err := c.newest()
	require.NoError(t, err)
	require.True(t, ok)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _, _, _ = c.newest() }))
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = s.choose(c, c.class.key) }))
}

// Thousands of clients come from another server at the same time: the difference is computed once.
func TestWhatHasChangedSinceIsWorkedOutOnce(t *testing.T) {
	b, since, calls := newBatches(nil, nil), &version{}, 0
	_, snapshot := snapshotter(t, &sink.Snapshot{})
	state := snapshot()
	what := func() (*sink.Snapshot, []model.ServiceName, []model.ServiceName, bool) {
		calls++
		return state, []model.ServiceName{{Namespace: "default", Name: "gone"}}, nil, true
	}
	first := b.wholeSince(since, what)
	assert.Len(t, first.chunks, 1)
	assert.Same(t, first, b.wholeSince(since, what))
	assert.Equal(t, 1, calls)
	assert.NotSame(t, first, b.wholeSince(&version{}, what))
	assert.True(t, slices.Equal(first.chunks[0].Bytes(), b.wholeSince(&version{}, what).chunks[0].Bytes()))
	lost := b.wholeSince(&version{revision: 1}, func() (*sink.Snapshot, []model.ServiceName, []model.ServiceName, bool) {
		return nil, nil, nil, false
	})
	assert.True(t, lost.lost)
}
