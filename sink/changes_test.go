package sink_test

import (
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// difference is what ChangesSince should yield.
func difference(old, new map[model.ServiceName]entryText) map[model.ServiceName][2]entryText {
	d := map[model.ServiceName][2]entryText{}
	for _, m := range []map[model.ServiceName]entryText{old, new} {
		for name := range m {
			if !assert.ObjectsAreEqual(old[name], new[name]) {
				d[name] = [2]entryText{old[name], new[name]}
			}
		}
	}
	return d
}

func changes(t *testing.T, seq iter.Seq[sink.Change]) map[model.ServiceName][2]entryText {
	d := map[model.ServiceName][2]entryText{}
	last := model.ServiceName{}
	for c := range seq {
		assert.Negative(t, last.Compare(c.Name), "changes come in the order of their names")
		last = c.Name
		var texts [2]entryText
		if c.Old != nil {
			texts[0] = textOf(c.Old)
		}
		if c.New != nil {
			texts[1] = textOf(c.New)
		}
		assert.Equal(t, texts[0].service != texts[1].service, c.ServiceChanged())
		checkEndpointChanges(t, c, texts)
		d[c.Name] = texts
	}
	return d
}

// checkEndpointChanges makes the endpoint changes to the old endpoints and expects the new ones.
func checkEndpointChanges(t *testing.T, c sink.Change, texts [2]entryText) {
	endpoints := map[string]bool{}
	for _, e := range texts[0].endpoints {
		endpoints[e] = true
	}
	var last model.EndpointKey
	for o, n := range c.Endpoints() {
		assert.False(t, o.Equal(n), "%v is no change", o)
		var k model.EndpointKey
		if o != nil {
			k = o.Key()
			assert.True(t, endpoints[o.String()])
			delete(endpoints, o.String())
		}
		if n != nil {
			k = n.Key()
			assert.False(t, endpoints[n.String()])
			endpoints[n.String()] = true
		}
		assert.Negative(t, last.Compare(k), "endpoint changes come in the order of their keys")
		last = k
	}
	assert.ElementsMatch(t, texts[1].endpoints, slices.Collect(maps.Keys(endpoints)))
}

// Waves of one call between snapshots that are kept for a long time, services that are added and deleted, and a
// snapshot of another FullState.
func TestChangesSinceAnySnapshotAreTheDifference(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		var kept, foreign []*sink.Snapshot
		f, other, n := sink.NewFullState(collect(&kept)), sink.NewFullState(collect(&foreign)), newNaive()
		for range 150 {
			for range 1 + r.IntN(1+r.IntN(20)) {
				randomCall(r, 12, f, n)
				randomCall(r, 12, other)
			}
			require.NoError(t, f.Sync(t.Context()))
			require.NoError(t, other.Sync(t.Context()))
		}
		kept = append(kept, nil, &sink.Snapshot{}, foreign[len(foreign)-1])
		texts := make([]map[model.ServiceName]entryText, len(kept))
		for i, s := range kept {
			if s != nil {
				texts[i] = contents(t, s)
			}
		}
		check := func(old, new int) {
			require.Equal(t, difference(texts[old], texts[new]), changes(t, kept[new].ChangesSince(kept[old])),
				"seed %d: %v since %v", seed, kept[new], kept[old])
		}
		own := len(kept) - 3
		for i := range own {
			check(r.IntN(own), i)
			check(max(0, i-1-r.IntN(4)), i)
			for odd := own; odd < len(kept); odd++ {
				check(odd, i)
			}
		}
	}
}

func TestAChangeThatIsRevertedIsNotReported(t *testing.T) {
	var kept []*sink.Snapshot
	f := sink.NewFullState(collect(&kept))
	a, b := httpEndpoint("a", "10.0.0.1:80"), httpEndpoint("a", "10.0.0.2:80")
	sync := func(calls ...func()) *sink.Snapshot {
		for _, c := range calls {
			c()
		}
		require.NoError(t, f.Sync(t.Context()))
		return kept[len(kept)-1]
	}
	s1 := sync(func() { f.SetService(service("a", 1)) }, func() { f.SetEndpoint(a) })
	assert.Same(t, s1, sync(func() { f.DeleteEndpoint(a.Key()) },
		func() { f.SetEndpoint(httpEndpoint("a", "10.0.0.1:80")) }),
		"no snapshot for a wave that changes nothing")
	assert.Same(t, s1, sync(func() { f.DeleteService(name("a")) }, func() { f.SetService(service("a", 1)) }))
	assert.Same(t, s1, sync(func() { f.SetEndpoint(b) }, func() { f.DeleteEndpoint(b.Key()) }))
	assert.Same(t, s1, sync(func() { f.DeleteService(name("b")) },
		func() { f.DeleteEndpoint(httpKey("c", "10.0.0.9:80")) }))

	s2 := sync(func() { f.SetEndpoint(b) }, func() { f.SetService(service("b", 2)) })
	s3 := sync(func() { f.DeleteEndpoint(b.Key()) })
	s4 := sync(func() { f.DeleteService(name("b")) }, func() { f.SetService(service("a", 1)) })
	assert.Len(t, changes(t, s2.ChangesSince(s1)), 2)
	assert.Len(t, changes(t, s3.ChangesSince(s1)), 1)
	assert.Empty(t, changes(t, s4.ChangesSince(s1)), "everything is as it was")
	assert.Empty(t, changes(t, s4.ChangesSince(s4)))
}
