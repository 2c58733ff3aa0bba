package benchmarks

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clockTick is what /proc/PID/stat counts in (sysconf(_SC_CLK_TCK), which is 100 on every architecture that Go knows).
const clockTick = 10 * time.Millisecond

// processorTime is what a process and its children that have ended have used. The kernel rounds that of the children down to
// 10 ms.
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

// ticks is the processor time of a process alone, as the kernel shows it to everybody.
func ticks(pid int) (int, error) {
	s, err := readStat(pid)
	return int(s.own / clockTick), err
}

type stat struct {
	parent        int
	own, children time.Duration
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the name before may contain spaces
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
	return stat{parent: n[0], own: time.Duration(n[1]+n[2]) * clockTick, children: time.Duration(n[3]+n[4]) * clockTick}, nil
}

// peakMemory is the most memory that a process has had resident, in KiB.
func peakMemory(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.Atoi(strings.Fields(value)[0])
			return kib
		}
	}
	return 0
}

// peak follows the memory of a process and of its children.
type peak struct {
	mu           sync.Mutex
	own, biggest int // KiB; of the process, and of its biggest child
	end          chan struct{}
	ended        sync.WaitGroup
	once         sync.Once
}

func watchPeak(pid int) *peak {
	p := &peak{end: make(chan struct{})}
	p.ended.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			p.look(pid)
			select {
			case <-p.end:
				return
			case <-tick.C:
			}
		}
	})
	return p
}

func (p *peak) look(pid int) {
	own, biggest := peakMemory(pid), 0
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil || child <= pid {
			continue
		}
		s, err := readStat(child)
		if err != nil || s.parent != pid {
			continue
		}
		// Until it executes another program, a child has the memory of its parent.
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child)); err == nil && exe != program {
			biggest = max(biggest, peakMemory(child))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own, p.biggest = max(p.own, own), max(p.biggest, biggest)
}

// kib returns the peaks so far.
func (p *peak) kib() (own, biggestChild int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.own, p.biggest
}

func (p *peak) stop() {
	p.once.Do(func() { close(p.end) })
	p.ended.Wait()
}
