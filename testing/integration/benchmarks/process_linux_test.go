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

// ticks is the processor time of a process alone, as the kernel shows it to everybody.
func ticks(pid int) (int, error) {
	s, err := readStat(pid)
	return int(s.own / clockTick), err
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

// processIDs returns those of all processes.
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

// peakMemory is the peak resident memory of a process, in KiB.
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
	child        bool
	strangers    map[int]bool // processes that are no children, so that they are not read every time
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
	own, biggest, child := peakMemory(pid), 0, false
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	strangers := map[int]bool{} // without those that have ended: a child may get their number
	for _, id := range processIDs() {
		if p.strangers[id] {
			strangers[id] = true
			continue
		}
		s, err := readStat(id)
		if err != nil {
			continue
		}
		if s.parent != pid {
			strangers[id] = true
			continue
		}
		child = true
		// Until it executes another program, a child has the memory of its parent.
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", id)); err == nil && exe != program {
			biggest = max(biggest, peakMemory(id))
		}
	}
	p.strangers = strangers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own, p.biggest, p.child = max(p.own, own), max(p.biggest, biggest), child
}

// hasChild reports whether there was a child at the last look.
func (p *peak) hasChild() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
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
