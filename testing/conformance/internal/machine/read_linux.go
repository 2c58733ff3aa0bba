package machine

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Here returns the source for this machine: for the processors that the judge and its programs may use. ours returns
// the processor time of these.
func Here(ours func() time.Duration) Source {
	var allowed unix.CPUSet
	_ = unix.SchedGetaffinity(0, &allowed) // if it fails, all count
	return Source{Processors: runtime.NumCPU(), Counters: func() Reading { return counters(&allowed) }, Ours: ours,
		Load: load}
}

// tick is the unit of /proc/stat.
const tick = 10 * time.Millisecond

// counters reads /proc/stat and /proc/pressure/cpu. What cannot be read is 0.
func counters(allowed *unix.CPUSet) (r Reading) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return r
	}
	r = parseStat(stat, allowed)
	pressure, _ := os.ReadFile("/proc/pressure/cpu") // not every kernel has it
	some, _, _ := strings.Cut(string(pressure), "\n")
	_, total, _ := strings.Cut(some, "total=")
	µs, _ := strconv.ParseInt(total, 10, 64)
	r.Waited = time.Duration(µs) * time.Microsecond
	return r
}

// parseStat parses /proc/stat, for the allowed processors. If it does not have these, as in containers that number them
// anew, it is about all.
func parseStat(stat []byte, allowed *unix.CPUSet) Reading {
	var all, part Reading
	processors, used, running := 0, 0, 0
	for line := range bytes.Lines(stat) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) > 8 && strings.HasPrefix(fields[0], "cpu"):
			number, err := strconv.Atoi(fields[0][len("cpu"):])
			if err != nil {
				continue // the sum
			}
			processors++
			all.addTimes(fields[1:9])
			if allowed.IsSet(number) {
				used++
				part.addTimes(fields[1:9])
			}
		case len(fields) == 2 && fields[0] == "procs_running":
			running, _ = strconv.Atoi(fields[1])
		}
	}
	if all.Runnable = running; used == 0 || used != allowed.Count() {
		return all
	}
	part.Runnable = (running*used + processors - 1) / processors // as if they were spread evenly
	return part
}

// addTimes adds the times of a processor: user nice system idle iowait irq softirq steal.
func (r *Reading) addTimes(fields []string) {
	for i, field := range fields {
		n, _ := strconv.ParseInt(field, 10, 64)
		d := time.Duration(n) * tick
		r.All += d
		if i < 3 {
			r.Busy += d
		}
		if i == 7 {
			r.Steal += d
		}
	}
}

// load returns the load average of the last minute.
func load() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
