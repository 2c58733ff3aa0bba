package backendtest

import (
	"runtime"
	"testing"
)

// Bench measures backends: it has a cluster, and a function that makes a backend on the dataplane as it is.
type Bench struct {
	Size ClusterSize
	New  func() Backend
	// Settle waits until the dataplane has done what it does in the background after a clean-up, so that this does not
	// count in the next measurement; nil if there is no such thing.
	Settle func()
}

// FullLoad measures the first Sync of a backend that finds nothing.
func (m Bench) FullLoad(b *testing.B) {
	m.firstSyncs(b, func(backend Backend) {
		check(b, backend.CleanUp(b.Context()))
		check(b, backend.Close())
		if m.Settle != nil {
			m.Settle()
		}
	})
}

// Restart measures the first Sync of a backend that finds everything as it should be.
func (m Bench) Restart(b *testing.B) {
	first := m.filled()
	check(b, first.Sync(b.Context()))
	check(b, first.Close())
	m.firstSyncs(b, func(backend Backend) { check(b, backend.Close()) })
}

// firstSyncs measures the first Syncs of one backend after another; end is called after each.
func (m Bench) firstSyncs(b *testing.B, end func(Backend)) {
	watch := NewStopwatch(b)
	for b.Loop() {
		b.StopTimer()
		backend := m.filled()
		runtime.GC()
		watch.Alone(func() { check(b, backend.Sync(b.Context())) })
		end(backend)
		b.StartTimer()
	}
}

// Waves measures waves of one change each, on a cluster that is applied.
func (m Bench) Waves(b *testing.B, change func(d Setter, n int)) {
	backend := m.filled()
	defer func() { check(b, backend.Close()) }()
	check(b, backend.Sync(b.Context()))
	runtime.GC()
	watch, n := NewStopwatch(b), 0
	for b.Loop() {
		watch.Time(func() {
			change(backend, n)
			check(b, backend.Sync(b.Context()))
		})
		n++
	}
}

// OneEndpointChanged measures waves in which one endpoint is removed and another one added, as when a pod is replaced.
func (m Bench) OneEndpointChanged(b *testing.B) { m.Waves(b, m.Size.ReplaceEndpoint) }

// AddOrDeleteService measures waves of which one adds a service and the next one deletes it.
func (m Bench) AddOrDeleteService(b *testing.B) { m.Waves(b, m.Size.AddOrDeleteService) }

func (m Bench) filled() Backend {
	backend := m.New()
	m.Size.Set(backend)
	return backend
}
