package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is a running command, with all that it has started in its process group.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended; err says how then
	err   error

	memory memoryWatch
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
	go p.memory.watch(cmd.Process.Pid, p.ended)
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
