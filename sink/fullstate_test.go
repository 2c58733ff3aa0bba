package sink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The snapshots that a callback gets, for any calls in any order, with failures and resyncs in between.
func FuzzFullState(f *testing.F) {
	addRandom(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var kept []*sink.Snapshot
		var fail error
		state, n := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
			kept = append(kept, s)
			return fail
		}), newNaive()
		intn, done := picker(data)
		for !done() {
			pickCall(intn, 4, state, n)
			switch fail = nil; intn(6) {
			case 0:
				fail = errors.New("not now")
				fallthrough
			case 1:
				_ = state.Sync(t.Context())
			case 2:
				state.ForceResync()
			}
		}
		fail = nil
		require.NoError(t, state.Sync(t.Context()))
		last := kept[len(kept)-1]
		require.Equal(t, n.contents(), contents(t, last))
		for _, old := range []*sink.Snapshot{nil, kept[0], kept[len(kept)/2]} {
			before := map[model.ServiceName]entryText{}
			if old != nil {
				before = contents(t, old)
			}
			require.Equal(t, difference(before, n.contents()), changes(t, last.ChangesSince(old)))
		}
	})
}

func TestWhenTheCallbackIsCalled(t *testing.T) {
	type call struct {
		revision   uint64
		fullResync bool
		services   int
	}
	var got *call
	var fail error
	f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		got = &call{s.Revision(), s.FullResync(), s.NumServices()}
		return fail
	})
	broken := errors.New("broken")
	for _, step := range []struct {
		name string
		do   func()
		fail error
		want *call
	}{
		{"the first Sync calls, of an empty state too, and a failed one", func() {}, broken, &call{1, true, 0}},
		{"a retry is the first full resync still", func() {}, broken, &call{2, true, 0}},
		{"it is until it succeeds", func() { f.SetService(service("a", 1)) }, nil, &call{3, true, 1}},
		{"nothing new: not called", func() {}, nil, nil},
		{"the same service again: not called", func() { f.SetService(service("a", 1)) }, nil, nil},
		{"another service", func() { f.SetService(service("b", 1)) }, nil, &call{4, false, 2}},
		{"a failure", func() { f.SetService(service("c", 1)) }, broken, &call{5, false, 3}},
		{"a retry without news has it all", func() {}, broken, &call{6, false, 3}},
		{"a retry with news has that too", func() { f.SetService(service("d", 1)) }, nil, &call{7, false, 4}},
		{"and then there is nothing left", func() {}, nil, nil},
		{"a forced resync without news", func() { f.ForceResync() }, broken, &call{8, true, 4}},
		{"a forced resync lasts until it succeeds", func() {}, nil, &call{9, true, 4}},
		{"and no longer", func() { f.DeleteService(name("a")) }, nil, &call{10, false, 3}},
		{"the node", func() { f.SetNode(&model.Node{Name: "n", Zone: "z"}) }, nil, &call{11, false, 3}},
		{"the same node", func() { f.SetNode(&model.Node{Name: "n", Zone: "z"}) }, nil, nil},
		{"no node", func() { f.SetNode(nil) }, nil, &call{12, false, 3}},
		{"nil values are ignored", func() { f.SetService(nil); f.SetEndpoint(nil) }, nil, nil},
	} {
		got, fail = nil, step.fail
		step.do()
		require.Equal(t, step.fail, f.Sync(t.Context()), step.name)
		require.Equal(t, step.want, got, step.name)
	}
}

func TestAConsumerThatFailsOftenMissesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	applied := map[model.ServiceName]entryText{}
	var last *sink.Snapshot
	f, n := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		if r.IntN(3) > 0 {
			return errors.New("not now")
		}
		for c := range s.ChangesSince(last) {
			delete(applied, c.Name)
			if c.New != nil {
				applied[c.Name] = textOf(c.New)
			}
		}
		last = s
		return nil
	}), newNaive()
	succeeded := 0
	for range 500 {
		randomCall(r, 10, f, n)
		if f.Sync(t.Context()) == nil {
			succeeded++
			require.Equal(t, n.contents(), applied)
		}
	}
	require.Greater(t, succeeded, 100)
}

func TestAFullStateThatBeginsWithASnapshot(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var first, second []*sink.Snapshot
		n := newNaive()
		begin := sink.NewFullState(collect(&first))
		for range r.IntN(30) { // possibly none
			randomCall(r, 8, begin, n)
		}
		require.NoError(t, begin.Sync(t.Context()))
		before := contents(t, first[0])
		n = newNaive()
		for e := range first[0].Services() {
			n.SetService(e.Service)
			for _, ep := range e.Endpoints {
				n.SetEndpoint(ep)
			}
		}
		f := sink.NewFullStateFrom(first[0], collect(&second))
		require.NoError(t, f.Sync(t.Context()))
		require.Equal(t, before, contents(t, second[0]))
		require.Equal(t, first[0].Node(), second[0].Node())
		require.Empty(t, changes(t, second[0].ChangesSince(first[0])))
		for range 1 + r.IntN(30) {
			randomCall(r, 8, f, n)
		}
		f.ForceResync()
		require.NoError(t, f.Sync(t.Context()))
		last := second[len(second)-1]
		require.Equal(t, n.contents(), contents(t, last))
		require.Equal(t, difference(before, n.contents()), changes(t, last.ChangesSince(first[0])))
		require.Equal(t, before, contents(t, first[0]), "the snapshot stays as it was")
	}
}

func TestEndpointsWithoutAServiceAreHeldBackUntilItIsSet(t *testing.T) {
	var kept []*sink.Snapshot
	f := sink.NewFullState(collect(&kept))
	var log bytes.Buffer
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	last := func() *sink.Snapshot {
		require.NoError(t, f.Sync(ctx))
		return kept[len(kept)-1]
	}
	f.SetEndpoint(httpEndpoint("a", "10.0.0.1:80"))
	s := last()
	assert.Zero(t, s.NumServices())
	assert.Zero(t, s.NumEndpoints())
	assert.Nil(t, s.Service(name("a")))
	assert.Contains(t, log.String(), `"Endpoints wait until their service is set" service="ns/a" endpoints=1`)

	f.SetEndpoint(httpEndpoint("a", "10.0.0.2:80"))
	f.DeleteEndpoint(httpKey("a", "10.0.0.1:80"))
	assert.Same(t, s, last())
	f.SetService(service("a", 1))
	s = last()
	assert.Equal(t, []*model.Endpoint{httpEndpoint("a", "10.0.0.2:80")}, s.Service(name("a")).Endpoints)

	f.DeleteService(name("a"))
	assert.Zero(t, last().NumEndpoints())
	f.SetService(service("a", 1))
	assert.Equal(t, 1, last().NumEndpoints())
	assert.Empty(t, changes(t, last().ChangesSince(s)))

	f.DeleteService(name("a"))
	f.DeleteEndpoint(httpKey("a", "10.0.0.2:80"))
	last()
	f.SetService(service("a", 1))
	assert.Zero(t, last().NumEndpoints())
}

func TestManyCallsForOneEndpointBetweenSyncsAreOneChange(t *testing.T) {
	var kept []*sink.Snapshot
	f := sink.NewFullState(collect(&kept))
	f.SetService(service("a", 1))
	var m0, m1 runtime.MemStats
	e := httpEndpoint("a", "10.0.0.1:80")
	runtime.GC()
	runtime.ReadMemStats(&m0)
	for range 100_000 {
		f.SetEndpoint(e)
	}
	runtime.GC()
	runtime.ReadMemStats(&m1)
	assert.Less(t, int64(m1.HeapAlloc)-int64(m0.HeapAlloc), int64(500_000), "what was overwritten is not kept")
	require.NoError(t, f.Sync(t.Context()))
	assert.Equal(t, 1, kept[0].NumEndpoints())
}

func TestTheLastCallForAnEndpointCounts(t *testing.T) {
	var kept []*sink.Snapshot
	f, n := sink.NewFullState(collect(&kept)), newNaive()
	r := rand.New(rand.NewPCG(5, 5))
	for _, s := range []describer{f, n} {
		s.SetService(service("a", 1))
	}
	for range 10 {
		for range 300 {
			e := endpoint(httpKey("a", fmt.Sprintf("10.0.0.%d:80", r.IntN(100))), model.EndpointSets(r.IntN(4)))
			for _, s := range []describer{f, n} {
				if e.Sets == 0 {
					s.DeleteEndpoint(e.Key())
				} else {
					s.SetEndpoint(e)
				}
			}
		}
		require.NoError(t, f.Sync(t.Context()))
		require.Equal(t, n.contents(), contents(t, kept[len(kept)-1]))
	}
}

// TestFullStateAsksForAResyncOfWhatFailed: a failure of one family does not affect the other one, and causes no more
// than one full resync until the retry.
func TestFullStateAsksForAResyncOfWhatFailed(t *testing.T) {
	type seen struct{ v4, v6, retry bool }
	var calls []seen
	var result error
	f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		calls = append(calls, seen{s.FullResyncOf(model.IPv4), s.FullResyncOf(model.IPv6), s.RetryDue()})
		assert.Equal(t, calls[len(calls)-1].v4 || calls[len(calls)-1].v6, s.FullResync())
		return result
	})
	ports := byte(0)
	sync := func(change bool, err error) []seen {
		if change {
			ports++
			f.SetService(service("a", ports))
		}
		calls, result = nil, err
		assert.Equal(t, err, f.Sync(t.Context()))
		return calls
	}
	broken := errors.New("broken")
	v4 := &sink.FamilyError{Family: model.IPv4, Err: broken}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: broken}
	port := &sink.PortError{Family: model.IPv6, Err: broken}

	assert.Equal(t, []seen{{true, true, true}}, sync(true, v6), "the first is a full one")
	assert.Equal(t, []seen{{false, true, false}}, sync(true, v6), "IPv4 has had its own, IPv6 still waits for it")
	f.ResyncFailed()
	assert.Equal(t, []seen{{false, true, true}}, sync(false, v6))
	f.ResyncFailed()
	assert.Equal(t, []seen{{false, true, true}}, sync(false, nil))
	f.ResyncFailed()
	assert.Empty(t, sync(false, nil), "nothing has failed")

	assert.Equal(t, []seen{{}}, sync(true, v4), "incremental")
	assert.Equal(t, []seen{{}}, sync(true, v4), "still incremental")
	f.ResyncFailed()
	assert.Equal(t, []seen{{true, false, true}}, sync(true, port), "all but a service port")
	assert.Equal(t, []seen{{}}, sync(true, port))
	f.ResyncFailed()
	assert.Equal(t, []seen{{false, false, true}}, sync(false, nil), "no full resync for a service port")

	f.ForceResync()
	assert.Equal(t, []seen{{true, true, true}}, sync(false, broken))
	assert.Equal(t, []seen{{true, true, false}}, sync(true, nil))
	assert.Equal(t, []seen{{}}, sync(true, nil))
}
