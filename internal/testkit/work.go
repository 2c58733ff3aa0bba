package testkit

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// Work is what something costs.
type Work struct {
	Bytes int           // allocated
	Time  time.Duration // of the processor, for all goroutines
}

// Step is a part of what a test does, and its work.
type Step struct {
	Name string
	Work
}

// Measure returns the work of a function, without that of the garbage collector, which follows from what there is.
func Measure(f func()) Work {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := ProcessorTime()
	f()
	took := ProcessorTime() - begin
	runtime.ReadMemStats(&after)
	return Work{int(after.TotalAlloc - before.TotalAlloc), took}
}

// LiveHeap returns the bytes of the heap that are in use.
func LiveHeap() int {
	var m runtime.MemStats
	for range 2 { // what pools hold goes with the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// CompareTimes fails if a step takes more than eight times as long with four times as much: linear work takes four
// times the processor time, a square sixteen times. What is within half of the time of all steps may be noise. Other
// programs run, too, and can only make it longer: the shortest times of up to five tries are compared.
func CompareTimes(t *testing.T, steps, withFourTimesAsMuch func() []Step) {
	t.Helper()
	if ProcessorTime() == 0 {
		t.Skip("this system does not tell the processor time")
	}
	var once, after, slow []Step
	for range 5 {
		runtime.GC()
		once, after = shorter(once, steps()), shorter(after, withFourTimesAsMuch())
		var total time.Duration
		for _, s := range once {
			total += s.Time
		}
		slow = nil
		for i, s := range after {
			if s.Time > 8*max(once[i].Time, total/2) {
				slow = append(slow, once[i], s)
			}
		}
		if len(slow) == 0 {
			return
		}
	}
	for i := 0; i < len(slow); i += 2 {
		t.Errorf("%s: %v, and %v with four times as much", slow[i].Name, slow[i].Time, slow[i+1].Time)
	}
}

// shorter returns the steps of a try with the shorter one of their times now and before.
func shorter(before, now []Step) []Step {
	for i := range before {
		now[i].Time = min(now[i].Time, before[i].Time)
	}
	return now
}
