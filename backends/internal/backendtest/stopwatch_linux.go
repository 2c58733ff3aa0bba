package backendtest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Stopwatch adds up the processor time of a benchmark, including that of the programs it runs, and reports it as
// cpu-ns/op. Unlike the wall time that benchmarks report, it depends little on what else the machine does.
type Stopwatch struct {
	Total time.Duration
	N     int // how often Time was called
	b     *testing.B
}

// NewStopwatch returns a stopwatch for a benchmark.
func NewStopwatch(b *testing.B) *Stopwatch { return &Stopwatch{b: b} }

// Time runs what is measured.
func (s *Stopwatch) Time(f func()) {
	before := processorTime(s.b)
	f()
	s.Total += processorTime(s.b) - before
	s.N++
	s.b.ReportMetric(float64(s.Total.Nanoseconds())/float64(s.N), "cpu-ns/op")
}

// Alone runs what is measured in a loop whose other parts are not: the benchmark's timer is stopped there.
func (s *Stopwatch) Alone(f func()) {
	s.b.StartTimer()
	s.Time(f)
	s.b.StopTimer()
}

// processorTime returns the processor time that this process and the programs that it ran have used, with the kernel's.
func processorTime(t testing.TB) time.Duration {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		check(t, unix.Getrusage(who, &r))
		total += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return total
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
