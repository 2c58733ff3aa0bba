package testbed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/speed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// Figures are the times measured on all networks of a run.
type Figures struct {
	mu            sync.Mutex
	wave          int
	Starts, waves []time.Duration
	processor     time.Duration
	memory        int64
	// WithoutExternal is set once the probes' external IPs do not answer.
	WithoutExternal atomic.Bool
}

// nextWave returns a new wave number.
func (f *Figures) nextWave() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wave++
	return f.wave
}

func (f *Figures) addStart(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Starts = append(f.Starts, took)
}

func (f *Figures) addWave(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waves = append(f.waves, took)
}

func (f *Figures) addUsage(processor time.Duration, memory int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processor += processor
	f.memory = max(f.memory, memory)
}

// slowest returns the longest time of a change so far.
func (f *Figures) slowest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waves) == 0 {
		return time.Second
	}
	return slices.Max(f.waves)
}

// slowestStart returns the longest time of a start so far, or 0.
func (f *Figures) slowestStart() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.Starts) == 0 {
		return 0
	}
	return slices.Max(f.Starts)
}

// limit is how long a change may take: much longer than any before. A slow starter, such as a program in an emulated
// machine, gets a multiple of its start time, because it may still be applying the previous change.
func (f *Figures) limit() time.Duration {
	return max(10*time.Second, min(10*f.slowest(), time.Minute), min(5*f.slowestStart(), 3*time.Minute))
}

// Settle is how long a wrong result is retried. For slow programs it is short, because two probes have already shown
// that the change is complete.
func (f *Figures) Settle() time.Duration {
	longest := time.Minute
	if f.slowestStart() > SlowStart {
		longest = 20 * time.Second
	}
	return max(3*time.Second, min(3*f.slowest(), longest))
}

// Speed returns the figures, or nil.
func (f *Figures) Speed() *report.Speed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.Starts) == 0 {
		return nil
	}
	run := report.SpeedRun{Start: speed.Milliseconds(slices.Min(f.Starts)), CPU: speed.Milliseconds(f.processor),
		Memory: f.memory,
		Change: report.Latency{Count: len(f.waves)}}
	if len(f.waves) > 0 {
		sorted := slices.Sorted(slices.Values(f.waves))
		run.Change.P50, run.Change.P99 = speed.Milliseconds(sorted[len(sorted)/2]), speed.Percentile99(sorted)
	}
	return &report.Speed{Runs: []report.SpeedRun{run}}
}
