package conformance

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// figures are the times measured on all lanes of a run.
type figures struct {
	mu            sync.Mutex
	wave          int
	starts, waves []time.Duration
	processor     time.Duration
	memory        int64
	// withoutExternal is set once the probes' external IPs do not answer.
	withoutExternal atomic.Bool
}

// nextWave returns a new wave number.
func (f *figures) nextWave() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wave++
	return f.wave
}

func (f *figures) addStart(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = append(f.starts, took)
}

func (f *figures) addWave(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waves = append(f.waves, took)
}

func (f *figures) addUsage(processor time.Duration, memory int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processor += processor
	f.memory = max(f.memory, memory)
}

// slowest returns the longest time of a change so far.
func (f *figures) slowest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waves) == 0 {
		return time.Second
	}
	return slices.Max(f.waves)
}

// slowestStart returns the longest time of a start so far, or 0.
func (f *figures) slowestStart() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.starts) == 0 {
		return 0
	}
	return slices.Max(f.starts)
}

// limit is how long a change may take: much longer than any before. A slow starter, such as a program in an emulated
// machine, gets a multiple of its start time, because it may still be applying the previous change.
func (f *figures) limit() time.Duration {
	return max(10*time.Second, min(10*f.slowest(), time.Minute), min(5*f.slowestStart(), 3*time.Minute))
}

// settle is how long a wrong result is retried. For slow programs it is short, because two probes have already shown
// that the change is complete.
func (f *figures) settle() time.Duration {
	longest := time.Minute
	if f.slowestStart() > slowStart {
		longest = 20 * time.Second
	}
	return max(3*time.Second, min(3*f.slowest(), longest))
}
