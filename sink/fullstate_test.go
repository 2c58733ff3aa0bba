package sink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// entryText is a service with its endpoints, in a form that is easy to compare and to read.
type entryText struct {
	service   string
	endpoints []string
}

func textOf(e *sink.ServiceEntry) entryText {
	t := entryText{service: e.Service.String()}
	for _, ep := range e.Endpoints {
		t.endpoints = append(t.endpoints, ep.String())
	}
	return t
}

// contents returns everything that a snapshot holds.
func contents(t *testing.T, s *sink.Snapshot) map[model.ServiceName]entryText {
	m := map[model.ServiceName]entryText{}
	last := model.ServiceName{}
	endpoints := 0
	for e := range s.Services() {
		assert.Negative(t, last.Compare(e.Service.Name), "services come in the order of their names")
		last = e.Service.Name
		assert.True(t, slices.IsSortedFunc(e.Endpoints, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) }))
		assert.Same(t, e, s.Service(e.Service.Name))
		endpoints += len(e.Endpoints)
		m[e.Service.Name] = textOf(e)
	}
	assert.Equal(t, len(m), s.NumServices())
	assert.Equal(t, endpoints, s.NumEndpoints())
	return m
}

// contents returns what a snapshot of the same state should hold.
func (n *naive) contents() map[model.ServiceName]entryText {
	m := map[model.ServiceName]entryText{}
	for name, s := range n.services {
		m[name] = entryText{service: s.String()}
	}
	for _, k := range slices.SortedFunc(maps.Keys(n.endpoints), model.EndpointKey.Compare) {
		if e, ok := m[k.Port.Service]; ok {
			e.endpoints = append(e.endpoints, n.endpoints[k].String())
			m[k.Port.Service] = e
		}
	}
	return m
}

// collect returns a callback that keeps every snapshot.
func collect(kept *[]*sink.Snapshot) func(context.Context, *sink.Snapshot) error {
	return func(_ context.Context, s *sink.Snapshot) error {
		*kept = append(*kept, s)
		return nil
	}
}

func TestSnapshotsHoldWhatWasDescribedAndNeverChange(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var kept []*sink.Snapshot
		var wants []map[model.ServiceName]entryText
		f, n := sink.NewFullState(collect(&kept)), newNaive()
		for range 60 {
			for range r.IntN(30) {
				randomCall(r, 8, f, n)
			}
			before := len(kept)
			require.NoError(t, f.Sync(t.Context()))
			if len(kept) > before {
				wants = append(wants, n.contents())
			}
			require.Equal(t, n.contents(), contents(t, kept[len(kept)-1]))
			require.Equal(t, n.node, kept[len(kept)-1].Node())
		}
		for i, s := range kept {
			require.Equal(t, wants[i], contents(t, s), "snapshot %d of seed %d", i, seed)
			require.EqualValues(t, i+1, s.Revision())
		}
	}
}

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

// Waves of one call between snapshots that are kept for long, services that come and go, and an outsider.
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
			require.Equal(t, difference(texts[old], texts[new]), changes(t, kept[new].ChangesSince(kept[old])), "seed %d: %v since %v", seed, kept[new], kept[old])
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

// What a callback is handed, for any calls in any order, with failures and resyncs in between.
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

func TestAChangeThatIsTakenBackIsNone(t *testing.T) {
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
	assert.Same(t, s1, sync(func() { f.DeleteEndpoint(a.Key()) }, func() { f.SetEndpoint(httpEndpoint("a", "10.0.0.1:80")) }),
		"no snapshot for a wave that changes nothing")
	assert.Same(t, s1, sync(func() { f.DeleteService(name("a")) }, func() { f.SetService(service("a", 1)) }))
	assert.Same(t, s1, sync(func() { f.SetEndpoint(b) }, func() { f.DeleteEndpoint(b.Key()) }))
	assert.Same(t, s1, sync(func() { f.DeleteService(name("b")) }, func() { f.DeleteEndpoint(httpKey("c", "10.0.0.9:80")) }))

	s2 := sync(func() { f.SetEndpoint(b) }, func() { f.SetService(service("b", 2)) })
	s3 := sync(func() { f.DeleteEndpoint(b.Key()) })
	s4 := sync(func() { f.DeleteService(name("b")) }, func() { f.SetService(service("a", 1)) })
	assert.Len(t, changes(t, s2.ChangesSince(s1)), 2)
	assert.Len(t, changes(t, s3.ChangesSince(s1)), 1)
	assert.Empty(t, changes(t, s4.ChangesSince(s1)), "everything is as it was")
	assert.Empty(t, changes(t, s4.ChangesSince(s4)))
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
	assert.Contains(t, log.String(), `"Endpoints are held back until their service is set" service="ns/a" endpoints=1`)

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

func TestPortAndSetEndpoints(t *testing.T) {
	var kept []*sink.Snapshot
	f := sink.NewFullState(collect(&kept))
	const both = model.ClusterSet | model.LocalSet
	f.SetService(service("a", 1))
	for _, e := range []*model.Endpoint{
		endpoint(key("a", "http", model.TCP, "[fd00::1]:80"), model.ClusterSet),
		endpoint(key("a", "http", model.TCP, "10.0.0.2:80"), both),
		endpoint(key("a", "http", model.TCP, "10.0.0.10:80"), model.ClusterSet),
		endpoint(key("a", "http", model.UDP, "10.0.0.3:80"), both),
		endpoint(key("a", "dns", model.UDP, "10.0.0.4:53"), 0),
		endpoint(key("a", "", model.TCP, "10.0.0.5:80"), model.LocalSet),
	} {
		f.SetEndpoint(e)
	}
	require.NoError(t, f.Sync(t.Context()))
	entry := kept[0].Service(name("a"))
	targets := func(endpoints iter.Seq[*model.Endpoint]) (s []string) {
		for e := range endpoints {
			s = append(s, e.Target.String())
		}
		return s
	}
	for _, c := range []struct {
		port     string
		protocol model.Protocol
		want     []string
	}{
		{"http", model.TCP, []string{"10.0.0.2:80", "10.0.0.10:80", "[fd00::1]:80"}},
		{"http", model.UDP, []string{"10.0.0.3:80"}},
		{"http", model.SCTP, nil},
		{"dns", model.UDP, []string{"10.0.0.4:53"}},
		{"dns", model.TCP, nil},
		{"", model.TCP, []string{"10.0.0.5:80"}},
		{"zzz", model.TCP, nil},
	} {
		assert.Equal(t, c.want, targets(slices.Values(entry.PortEndpoints(c.port, c.protocol))), "%s/%v", c.port, c.protocol)
	}
	for _, c := range []struct {
		family model.Family
		set    model.EndpointSets
		want   []string
	}{
		{model.IPv4, model.ClusterSet, []string{"10.0.0.2:80", "10.0.0.10:80"}},
		{model.IPv4, model.LocalSet, []string{"10.0.0.2:80"}},
		{model.IPv6, model.ClusterSet, []string{"[fd00::1]:80"}},
		{model.IPv6, model.LocalSet, nil},
		{model.IPv4, 0, nil},
	} {
		assert.Equal(t, c.want, targets(entry.SetEndpoints("http", model.TCP, c.family, c.set)), "%v %v", c.family, c.set)
	}
	for e := range entry.SetEndpoints("http", model.TCP, model.IPv4, model.ClusterSet) {
		assert.Equal(t, "10.0.0.2:80", e.Target.String())
		break // an iterator that goes on after this panics
	}
}

func TestIteratorsCanBeLeftEarly(t *testing.T) {
	var kept []*sink.Snapshot
	f := sink.NewFullState(collect(&kept))
	for range 2 {
		for i := range 3 {
			f.SetService(service(fmt.Sprint(i), byte(len(kept))))
			f.SetEndpoint(httpEndpoint(fmt.Sprint(i), fmt.Sprintf("10.0.%d.1:80", len(kept))))
		}
		require.NoError(t, f.Sync(t.Context()))
	}
	// Going on after a break panics.
	for _, old := range []*sink.Snapshot{nil, kept[0]} {
		for c := range kept[1].ChangesSince(old) {
			for range c.Endpoints() {
				break
			}
			break
		}
	}
	for range kept[1].Services() {
		break
	}
}

func TestTheZeroSnapshotIsEmpty(t *testing.T) {
	var s sink.Snapshot
	assert.Empty(t, contents(t, &s))
	assert.Nil(t, s.Service(name("a")))
	assert.Nil(t, s.Node())
	assert.Empty(t, changes(t, s.ChangesSince(nil)))
	assert.Empty(t, changes(t, s.ChangesSince(&s)))
	assert.Equal(t, "revision 0 (services: 0, endpoints: 0)", s.String())
}

// The race detector is what makes this test fail.
func TestSnapshotsAreReadWhileLaterOnesAreMade(t *testing.T) {
	var readers sync.WaitGroup
	var previous *sink.Snapshot
	f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		old := previous
		readers.Go(func() {
			endpoints := 0
			for e := range s.Services() {
				endpoints += len(s.Service(e.Service.Name).Endpoints)
			}
			assert.Equal(t, s.NumEndpoints(), endpoints)
			for c := range s.ChangesSince(old) {
				for range c.Endpoints() {
				}
			}
		})
		if s.Revision()%10 == 1 {
			previous = s
		}
		return nil
	})
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		for range 20 {
			randomCall(r, 300, f)
		}
		require.NoError(t, f.Sync(t.Context()))
	}
	readers.Wait()
}

func TestSnapshotsThatNobodyKeepsAreFreed(t *testing.T) {
	var last *sink.Snapshot
	f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		last = s
		return nil
	})
	wave := func(i int) (weak.Pointer[sink.Snapshot], weak.Pointer[model.Service]) {
		s := service("a", byte(i))
		f.SetService(s)
		require.NoError(t, f.Sync(t.Context()))
		return weak.Make(last), weak.Make(s)
	}
	wave(0)
	first := last
	var snapshots []weak.Pointer[sink.Snapshot]
	var services []weak.Pointer[model.Service]
	for i := range 50 {
		s, v := wave(i + 1)
		snapshots, services = append(snapshots, s), append(services, v)
	}
	runtime.GC()
	for i := range 49 {
		assert.Nil(t, snapshots[i].Value(), "snapshot %d", i)
		assert.Nil(t, services[i].Value(), "a value that only snapshot %d had", i)
	}
	assert.Len(t, changes(t, last.ChangesSince(first)), 1)
	runtime.KeepAlive(f)
}

func TestEndpointsThatWentAreFreed(t *testing.T) {
	f := sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil })
	var endpoints []weak.Pointer[model.Endpoint]
	f.SetService(service("a", 1))
	for i := range 20 {
		e := httpEndpoint("a", fmt.Sprintf("10.0.0.%d:80", i))
		f.SetEndpoint(e)
		endpoints = append(endpoints, weak.Make(e))
	}
	require.NoError(t, f.Sync(t.Context()))
	for i := range 20 {
		f.DeleteEndpoint(httpKey("a", fmt.Sprintf("10.0.0.%d:80", i)))
	}
	require.NoError(t, f.Sync(t.Context()))
	runtime.GC()
	for i, e := range endpoints {
		assert.Nil(t, e.Value(), "endpoint %d", i)
	}
	runtime.KeepAlive(f)
}

func TestAnOldSnapshotDoesNotGrow(t *testing.T) {
	var last *sink.Snapshot
	f := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		last = s
		return nil
	})
	const services = 100
	values := [2][services]*model.Service{}
	for i := range services {
		values[0][i], values[1][i] = service(fmt.Sprint(i), 0), service(fmt.Sprint(i), 1)
		f.SetService(values[0][i])
	}
	require.NoError(t, f.Sync(t.Context()))
	first := last
	churn := func(waves int) uint64 {
		for i := range waves {
			f.SetService(values[(i/services+1)%2][i%services])
			require.NoError(t, f.Sync(t.Context()))
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := churn(10 * services)
	after := churn(1000 * services)
	assert.Less(t, int64(after)-int64(before), int64(200_000), "100,000 waves later")
	assert.Empty(t, changes(t, last.ChangesSince(first)), "an even number of rounds changes nothing")
	f.SetService(service("5", 2))
	require.NoError(t, f.Sync(t.Context()))
	assert.Len(t, changes(t, last.ChangesSince(first)), 1)
}
