package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// members are the processes of a program: those of its process group, and those that have left it, as daemons and
// containers do, but are in a namespace that only the node or the program has.
type members struct {
	group int // 0: none
	// net and mount are the namespaces, "" if it is also the judge's.
	net, mount string
	except     int // a process that is not a member
	// held keeps the mount namespace: once the last process has left it, the kernel may reuse its number. The suite keeps
	// the network namespace.
	held *os.File
}

// membersOf returns the members of a command that was started on this thread, which is in the node's network namespace.
// With group 0 they are all processes in that namespace.
func membersOf(group int) members {
	m := members{group: group, net: notTheJudges(spaceOf("/proc/thread-self", "net"), "net")}
	if group == 0 {
		return m
	}
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(group), "ns", "mnt"))
	if err != nil {
		return m // it has exited
	}
	space, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	m.mount, m.held = notTheJudges(space, "mnt"), f
	return m
}

// release closes the mount namespace. The members cannot be found any more after that.
func (m members) release() {
	if m.held != nil {
		_ = m.held.Close()
	}
}

// notTheJudges returns a namespace, or "" if the judge is in it, too. The judge's first thread never enters another
// one.
func notTheJudges(space, kind string) string {
	if judges := spaceOf("/proc/self", kind); space == judges || judges == "" {
		return ""
	}
	return space
}

// spaceOf returns a namespace of a process, "" if it is unknown.
func spaceOf(proc, kind string) string {
	space, err := os.Readlink(filepath.Join(proc, "ns", kind))
	if err != nil {
		return ""
	}
	return space
}

// stopTimeout limits the time that a program may take to exit after SIGTERM.
const stopTimeout = 10 * time.Second

// end ends all members, and returns whether some had to be killed.
func (m members) end() (killed bool) {
	told := map[int]bool{}
	m.signal(syscall.SIGTERM, told)
	killed = !m.empty(func() { m.signal(syscall.SIGTERM, told) }) // those that were just being started, too
	m.empty(func() { m.signal(syscall.SIGKILL, map[int]bool{}) })
	return killed
}

// empty waits, for at most stopTimeout, until no member runs any more, and reports whether that is so. It polls,
// because only a parent is notified of an exit.
func (m members) empty(meanwhile func()) bool {
	for deadline := time.Now().Add(stopTimeout); m.run(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		meanwhile()
	}
	return true
}

// signal sends a signal to all members that have not received it yet. The group receives it as a whole.
func (m members) signal(s syscall.Signal, told map[int]bool) {
	if m.group != 0 && !told[-m.group] {
		told[-m.group] = true
		_ = syscall.Kill(-m.group, s)
	}
	m.each(func(proc string, fields []string) {
		pid, _ := strconv.Atoi(filepath.Base(proc))
		if told[pid] || m.group != 0 && fields[2] == strconv.Itoa(m.group) {
			return
		}
		told[pid] = true
		one, err := os.FindProcess(pid) // from here on the number stands for this process
		if err != nil {
			return
		}
		if m.has(proc, fields) {
			_ = one.Signal(s)
		}
		_ = one.Release()
	})
}

// run reports whether a member runs.
func (m members) run() (runs bool) {
	m.each(func(_ string, fields []string) { runs = runs || !strings.Contains("ZX", fields[0]) })
	return runs
}

// each calls a function for each member, with its folder in /proc and the fields of its stat file from the state on.
func (m members) each(do func(proc string, fields []string)) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has exited
		}
		_, rest, _ := strings.Cut(string(b), ") ") // the name before may contain spaces
		fields := strings.Fields(rest)
		if proc := filepath.Dir(path); len(fields) >= 15 && m.has(proc, fields) {
			do(proc, fields)
		}
	}
}

// has reports whether a process is a member.
func (m members) has(proc string, fields []string) bool {
	if m.group != 0 && fields[2] == strconv.Itoa(m.group) {
		return true
	}
	switch filepath.Base(proc) {
	case strconv.Itoa(m.except), strconv.Itoa(os.Getpid()):
		return false
	}
	return m.net != "" && spaceOf(proc, "net") == m.net || m.mount != "" && spaceOf(proc, "mnt") == m.mount
}
