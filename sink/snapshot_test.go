package sink_test

import (
	"context"
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
		assert.True(t, slices.IsSortedFunc(e.Endpoints,
			func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) }))
		assert.Same(t, e, s.Service(e.Service.Name))
		endpoints += len(e.Endpoints)
		m[e.Service.Name] = textOf(e)
	}
	assert.Equal(t, len(m), s.NumServices())
	assert.Equal(t, endpoints, s.NumEndpoints())
	return m
}

// contents returns the expected content of a snapshot of the same state.
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
		assert.Equal(t, c.want, targets(slices.Values(entry.PortEndpoints(c.port, c.protocol))), "%s/%v", c.port,
			c.protocol)
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
		assert.Equal(t, c.want, targets(entry.SetEndpoints("http", model.TCP, c.family, c.set)), "%v %v", c.family,
			c.set)
	}
	for e := range entry.SetEndpoints("http", model.TCP, model.IPv4, model.ClusterSet) {
		assert.Equal(t, "10.0.0.2:80", e.Target.String())
		break // an iterator that continues after this panics
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
	// Continuing after a break panics.
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

// This test fails only with the race detector.
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

func TestUnreferencedSnapshotsAreFreed(t *testing.T) {
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
