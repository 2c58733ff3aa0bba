package testkit

import (
	"fmt"
	"maps"
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
// programs run, too, and the kernel samples what it tells, so a step fails only if it does in each of five tries.
func CompareTimes(t *testing.T, steps, withFourTimesAsMuch func() []Step) {
	t.Helper()
	if !tellsProcessorTime {
		t.Skip("this system does not tell the processor time")
	}
	excess := map[string][]string{} // by step
	for try := range 5 {
		runtime.GC()
		once, after := steps(), withFourTimesAsMuch()
		var total time.Duration
		for _, s := range once {
			total += s.Time
		}
		for i, s := range after {
			if before := max(once[i].Time, total/2); s.Time > 8*before {
				excess[s.Name] = append(excess[s.Name], fmt.Sprintf("%v, and %v with four times as much", before, s.Time))
			}
		}
		maps.DeleteFunc(excess, func(_ string, list []string) bool { return len(list) <= try })
		if len(excess) == 0 {
			return
		}
	}
	t.Error(excess)
}
