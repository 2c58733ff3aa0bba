package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// process is a running command with all that it has started.
type process struct {
	members
	cmd   *exec.Cmd
	ended chan struct{} // closed when the command has exited; err then says how
	err   error
	guard *guard

	memory memoryWatch
}

// attributes give a command its own process group and mounts, and kill its first process when the judge exits.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Unshareflags: syscall.CLONE_NEWNS}
}

// start starts a command on the calling thread, in whose network namespace it runs. The thread has to outlive it.
func start(cmd *exec.Cmd, log *os.File) (*process, error) {
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	p.members = membersOf(cmd.Process.Pid)
	var err error
	if p.guard, err = newGuard(p.members); err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		p.release()
		return nil, err
	}
	p.except = p.guard.cmd.Process.Pid
	go func() {
		if p.err = cmd.Wait(); p.err == nil {
			p.err = fmt.Errorf("exit status 0")
		}
		close(p.ended)
	}()
	go p.memory.watch(cmd.Process.Pid, p.ended)
	return p, nil
}

// stop ends all processes of the program, and returns whether some had to be killed. The first one is a shell, which
// may exit long before the program does.
func (p *process) stop() (killed bool) {
	killed = p.end()
	<-p.ended
	p.guard.dismiss()
	p.release()
	return killed
}

// guard is a process that kills a program when the judge exits, even if the judge is killed. Otherwise the children of
// a shell would survive.
type guard struct {
	cmd  *exec.Cmd
	held *os.File // the guard waits until this is closed
}

// guardScript waits for the end of its input. Then it kills a process group, and all processes in two namespaces except
// itself, until none is left, in at most nine rounds.
const guardScript = `read -r _; kill -s KILL -- "-$1"; exec 2>/dev/null
for try in 1 2 3 4 5 6 7 8 9; do
	left=
	list=$(ls -l /proc/[0-9]*/ns/net /proc/[0-9]*/ns/mnt) # lines like: ... /proc/7/ns/net -> net:[4026531840]
	IFS="
"
	set -f
	for line in $list; do
		pid=${line##*/proc/}
		pid=${pid%%/*}
		[ "$pid" = $$ ] && continue
		case " $2 $3 " in *" ${line##*-> } "*) kill -s KILL "$pid" && left=1 ;; esac
	done
	set +f
	[ "$left" ] || exit
done`

func newGuard(m members) (*guard, error) {
	waits, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	g := &guard{exec.CommandContext(context.Background(), "sh", "-c", guardScript, "guard", strconv.Itoa(m.group), m.net,
		m.mount), held}
	g.cmd.Stdin, g.cmd.SysProcAttr = waits, &syscall.SysProcAttr{Setpgid: true}
	if m.held != nil {
		g.cmd.ExtraFiles = []*os.File{m.held}
	}
	err = g.cmd.Start()
	_ = waits.Close()
	if err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("guard of the program: %w", err)
	}
	return g, nil
}

// dismiss ends the guard: the process group is gone, and its number may be reused.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	_ = g.held.Close()
}

// tail returns the last lines of a file that were written after an offset.
func tail(path string, from int64) string {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil {
		if from > info.Size() { // somebody has truncated it
			from = 0
		}
		_, _ = f.Seek(max(from, info.Size()-most), io.SeekStart)
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	return last(string(b))
}

func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
