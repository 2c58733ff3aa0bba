package main

import (
	"context"
	"fmt"
	"io"
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
	guard *guard

	memory memoryWatch
}

// attributes make a process group of a command, and end its first process with the judge. Its mounts are its own.
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
	var err error
	if p.guard, err = newGuard(cmd.Process.Pid); err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		return nil, err
	}
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

// stop ends all processes of the group, and returns whether some had to be killed. The first one, a shell, may end long
// before the program does.
func (p *process) stop() (killed bool) {
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	killed = !p.empty()
	_ = syscall.Kill(group, syscall.SIGKILL) // and what was just being started
	p.empty()
	<-p.ended
	p.guard.dismiss()
	return killed
}

// empty waits until no process of the group runs any more, for stopTimeout at most, and reports whether none does.
// Nobody is told of the end of processes that are not one's own children.
func (p *process) empty() bool {
	for deadline := time.Now().Add(stopTimeout); p.runs(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// runs reports whether a process of the group has not ended.
func (p *process) runs() (runs bool) {
	p.each(func(_ string, fields []string) { runs = runs || !strings.Contains("ZX", fields[0]) })
	return runs
}

// each calls a function for each process of the group, with its folder in /proc and the fields of its stat behind its
// name: the state is the first.
func (p *process) each(do func(proc string, fields []string)) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(b), ") ") // the name before may contain spaces
		fields := strings.Fields(rest)
		if len(fields) >= 15 && fields[2] == strconv.Itoa(p.cmd.Process.Pid) {
			do(filepath.Dir(path), fields)
		}
	}
}

// guard is a process that kills a process group when the judge ends, even if the judge itself is killed. What a shell
// has started would go on otherwise.
type guard struct {
	cmd  *exec.Cmd
	held *os.File // it waits until this is closed
}

func newGuard(group int) (*guard, error) {
	waits, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	g := &guard{exec.CommandContext(context.Background(), "sh", "-c",
		`read -r _; kill -s KILL -- "-$1"`, "guard", strconv.Itoa(group)), held}
	g.cmd.Stdin, g.cmd.SysProcAttr = waits, &syscall.SysProcAttr{Setpgid: true}
	err = g.cmd.Start()
	_ = waits.Close()
	if err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("guard of the program: %w", err)
	}
	return g, nil
}

// dismiss ends the guard. The process group has ended, and somebody else may have its number soon.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	_ = g.held.Close()
}

// tail returns the last lines of what is in a file from an offset on, which may be a lot.
func tail(path string, from int64) string {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(from, info.Size()-most), io.SeekStart)
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
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
