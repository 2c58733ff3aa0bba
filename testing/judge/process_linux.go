package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running command, with all that it has started in its process group.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended; err says how then
	err   error
}

// attributes make a process group of a command, and end it with the judge. Its mounts are its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Unshareflags: syscall.CLONE_NEWNS}
}

// start starts a command on the calling thread, which has to live longer than that.
func start(cmd *exec.Cmd, log *os.File) (*process, error) {
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		if p.err = cmd.Wait(); p.err == nil {
			p.err = fmt.Errorf("exit status 0")
		}
		close(p.ended)
	}()
	return p, nil
}

// stopTimeout is how long a program may take to end after SIGTERM.
const stopTimeout = 10 * time.Second

// stop ends the process, and returns whether it had to be killed.
func (p *process) stop() (killed bool) {
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		killed = true
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // and what it has left behind
	<-p.ended
	return killed
}

// usage returns the processor time, and the most memory that a process of the group has had.
func (p *process) usage() (processor time.Duration, memory int64) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(b), ") ") // the name before may contain spaces
		fields := strings.Fields(rest)
		if len(fields) < 15 || fields[2] != strconv.Itoa(p.cmd.Process.Pid) {
			continue
		}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			ticks, _ := strconv.Atoi(field)
			processor += time.Duration(ticks) * 10 * time.Millisecond
		}
		memory = max(memory, peakMemory(filepath.Dir(path)))
	}
	return processor, memory
}

// peakMemory is the most memory that a process has had resident, in bytes.
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

// tail returns the last lines of a file.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return last(string(b))
}

// last returns the last lines of a text.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
