package machine

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Here returns the source for this machine. ours returns the processor time of the judge and its programs.
func Here(ours func() time.Duration) Source {
	return Source{Processors: runtime.NumCPU(), Counters: counters, Ours: ours, Load: load}
}

// tick is the unit of /proc/stat.
const tick = 10 * time.Millisecond

// counters reads /proc/stat and /proc/pressure/cpu. What cannot be read is 0.
func counters() (r Reading) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return r
	}
	for line := range bytes.Lines(stat) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) > 8 && fields[0] == "cpu": // user nice system idle iowait irq softirq steal
			for i, field := range fields[1:9] {
				n, _ := strconv.ParseInt(field, 10, 64)
				d := time.Duration(n) * tick
				r.All += d
				if i < 3 {
					r.Busy += d
				}
				if i == 7 {
					r.Steal = d
				}
			}
		case len(fields) == 2 && fields[0] == "procs_running":
			r.Runnable, _ = strconv.Atoi(fields[1])
		}
	}
	pressure, _ := os.ReadFile("/proc/pressure/cpu") // not every kernel has it
	some, _, _ := strings.Cut(string(pressure), "\n")
	_, total, _ := strings.Cut(some, "total=")
	µs, _ := strconv.ParseInt(total, 10, 64)
	r.Waited = time.Duration(µs) * time.Microsecond
	return r
}

// load returns the load average of the last minute.
func load() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
