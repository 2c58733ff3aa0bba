package benchmarks

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/PID/stat (sysconf(_SC_CLK_TCK), which is 100 on every architecture that Go knows).
const clockTick = 10 * time.Millisecond

// processorTime is that of a process and of its children that have ended. The kernel rounds that of the children down
// to 10 ms.
func processorTime(pid int) (time.Duration, error) {
	var total time.Duration
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("no threads of process %d", pid)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ns)
	}
	s, err := readStat(pid)
	return max(total, s.own) + s.children, err // threads that have ended are in the coarser one only
}

type stat struct {
	name          string // the first 15 bytes of the program's
	parent        int
	own, children time.Duration
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	before, rest, _ := strings.Cut(string(b), ") ") // the name may contain spaces
	_, name, _ := strings.Cut(before, "(")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return stat{}, fmt.Errorf("process %d: stat is %q", pid, b)
	}
	var n [5]int
	for i, field := range []int{1, 11, 12, 13, 14} { // ppid, utime, stime, cutime, cstime
		if n[i], err = strconv.Atoi(fields[field]); err != nil {
			return stat{}, err
		}
	}
	return stat{name: name, parent: n[0], own: time.Duration(n[1]+n[2]) * clockTick,
		children: time.Duration(n[3]+n[4]) * clockTick}, nil
}

// processIDs returns the IDs of all processes.
func processIDs() (ids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// childNamed returns the process that another one has started from a program of that name.
func childNamed(parent int, name string) (int, error) {
	for _, id := range processIDs() {
		if s, err := readStat(id); err == nil && s.parent == parent && s.name == name {
			return id, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child %s", parent, name)
}
