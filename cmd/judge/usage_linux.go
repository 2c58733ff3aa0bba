package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// usage returns the CPU time of the program, and its peak memory.
func (p *process) usage() (processor time.Duration, memory int64) {
	p.memory.look(p.cmd.Process.Pid)
	return p.time(), p.memory.most.Load()
}

// time returns the CPU time of the members, including that of their children that have exited.
func (m members) time() (processor time.Duration) {
	m.each(func(proc string, fields []string) {
		ticks := func(from int) (sum time.Duration) { // utime and stime, or cutime and cstime
			for _, field := range fields[from : from+2] {
				n, _ := strconv.Atoi(field)
				sum += time.Duration(n) * 10 * time.Millisecond
			}
			return sum
		}
		// Ticks are coarse, but only they include threads that have exited.
		processor += max(ticks(11), threadTime(proc)) + ticks(13)
	})
	return processor
}

// timeOf returns the CPU time of a command that has exited, and of the children that it has waited for.
func timeOf(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0 // it could not be started
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// threadTime returns the CPU time of a process's current threads.
func threadTime(proc string) (total time.Duration) {
	tasks, _ := filepath.Glob(proc + "/task/[0-9]*/schedstat")
	for _, task := range tasks {
		if b, err := os.ReadFile(task); err == nil {
			ns, _, _ := strings.Cut(string(b), " ")
			n, _ := strconv.ParseInt(ns, 10, 64)
			total += time.Duration(n)
		}
	}
	return total
}

// memoryWatch records the peak memory of a process and its children together; children like nft are short-lived.
type memoryWatch struct{ most atomic.Int64 }

// watch samples until the process has exited.
func (m *memoryWatch) watch(pid int, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
			m.look(pid)
		}
	}
}

func (m *memoryWatch) look(pid int) {
	now := memoryOf(pid, "")
	for old := m.most.Load(); now > old && !m.most.CompareAndSwap(old, now); old = m.most.Load() {
	}
}

// memoryOf returns the sum of the peaks of a process and its children.
func memoryOf(pid int, parent string) int64 {
	proc := fmt.Sprintf("/proc/%d", pid)
	program, err := os.Readlink(proc + "/exe")
	if err != nil {
		return 0 // it has exited
	}
	var total int64
	if program != parent { // before it executes another program, a child shares its parent's memory
		total = peakMemory(proc)
	}
	lists, _ := filepath.Glob(proc + "/task/[0-9]*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(b)) {
			if id, err := strconv.Atoi(child); err == nil {
				total += memoryOf(id, program)
			}
		}
	}
	return total
}

// peakMemory returns a process's peak resident memory, in bytes.
func peakMemory(proc string) int64 {
	b, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, _ := strconv.ParseInt(string(bytes.Fields(value)[0]), 10, 64)
			return kib << 10
		}
	}
	return 0
}
