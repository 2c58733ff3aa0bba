package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/osthread"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// daemons are programs that leave the process group of the command that starts them.
func daemons() map[string]string {
	return map[string]string{
		"a session of its own":          "setsid sh -c 'echo ready; sleep 1000; true' & wait; true",
		"a daemon, and the shell ended": "setsid sh -c 'echo ready; sleep 1000; true' & true",
		"a container":                   "setsid unshare -m -p -f sh -c 'echo ready; exec sleep 1000' & wait; true",
		"out of the node's network":     "setsid unshare --net sh -c 'echo ready; sleep 1000; true' & wait; true",
	}
}

// onNode calls f on a thread of a network namespace that only the test has.
func onNode(t *testing.T, f func()) {
	t.Helper()
	need.Root(t)
	n, err := osthread.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	require.NoError(t, n.Do(func() error { f(); return nil }))
}

// startedOnNode starts a command that prints ready. Its output ends with the last process that has it.
func startedOnNode(t *testing.T, command string) (p *process, output *os.File) {
	t.Helper()
	if strings.Contains(command, "unshare ") {
		need.Program(t, "unshare")
	}
	output, log, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = output.Close() })
	onNode(t, func() {
		cmd := exec.Command("sh", "-c", command)
		cmd.SysProcAttr = attributes()
		p, err = start(cmd, log)
	})
	require.NoError(t, err)
	require.NoError(t, log.Close())
	_, err = io.ReadFull(output, make([]byte, len("ready\n")))
	require.NoError(t, err)
	return p, output
}

// All processes that a program starts on the node end when the program is stopped. Others keep running.
func TestDaemonsEndWithTheProgram(t *testing.T) {
	need.Root(t)
	t.Parallel() // a program has 10 seconds to end
	bystander := exec.Command("sh", "-c", "exec sleep 1000")
	require.NoError(t, bystander.Start())
	t.Cleanup(func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	})
	for name, command := range daemons() {
		t.Run(name, func(t *testing.T) {
			p, output := startedOnNode(t, command)
			killed := p.stop()
			assert.Equal(t, name == "a container", killed, "its first process has no handler for SIGTERM")
			rest, err := io.ReadAll(output) // until nobody has it any more
			require.NoError(t, err)
			assert.Empty(t, rest)
			assert.False(t, p.run())
		})
	}
	require.NoError(t, bystander.Process.Signal(syscall.Signal(0)), "a process of the machine has ended")
}

// They also end if the judge is killed.
func TestDaemonsEndWithTheJudge(t *testing.T) {
	for name, command := range daemons() {
		t.Run(name, func(t *testing.T) {
			p, output := startedOnNode(t, command)
			require.NoError(t, p.guard.held.Close())
			rest, err := io.ReadAll(output)
			require.NoError(t, err)
			assert.Empty(t, rest)
			p.stop()
		})
	}
}

// The kernel gives the number of a namespace that is gone to the next one. As long as a program's processes are sought,
// that must not be another program's.
func TestNoOtherProgramGetsTheNumberOfItsNamespace(t *testing.T) {
	log, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	begin := func() *process {
		cmd := exec.Command("sh", "-c", "exec sleep 0.1")
		cmd.SysProcAttr = attributes()
		p, err := start(cmd, log)
		assert.NoError(t, err)
		return p
	}
	onNode(t, func() {
		first := begin()
		assert.NotEmpty(t, first.mount)
		<-first.ended
		for range 5 {
			other := begin()
			<-other.ended
			assert.NotEqual(t, first.mount, other.mount)
			other.stop()
		}
		first.stop()
	})
}

// The processor time of a daemon is the program's: it makes no excuse for its results.
func TestADaemonsTimeIsTheProgramsTime(t *testing.T) {
	p, _ := startedOnNode(t, "setsid sh -c 'echo ready; while :; do :; done' & wait; true")
	defer p.stop()
	require.Eventually(t, func() bool {
		used, _ := p.usage()
		return used > 20*time.Millisecond
	}, time.Minute, time.Millisecond)
}

// The processor time of a clean-up, which runs while the program does not, is the program's as well, and stays when the
// clean-up has ended.
func TestACleanUpsTimeIsTheProgramsTime(t *testing.T) {
	need.Root(t)
	h := &host{folder: t.TempDir()}
	log, err := os.Create(filepath.Join(h.folder, "log"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	h.logFile = log
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen time.Duration
	onNode(t, func() {
		h.all = membersOf(0)
		go func() {
			defer cancel()
			assert.Eventually(t, func() bool {
				seen, _ = h.Usage()
				return seen > 20*time.Millisecond
			}, time.Minute, time.Millisecond)
		}()
		assert.ErrorContains(t, h.run(ctx, "while :; do :; done"), "killed")
	})
	ended, _ := h.Usage()
	assert.GreaterOrEqual(t, ended, seen)
}

// What a program uses before it exits, on SIGTERM as well, stays its time until it is started again.
func TestTheTimeOfAProgramThatHasEnded(t *testing.T) {
	output, log, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = output.Close() }()
	h := &host{process: started(t, "trap 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit' TERM; "+
		"echo ready; while :; do sleep 0.01; done", log), logFile: log}
	_, err = io.ReadFull(output, make([]byte, len("ready\n")))
	require.NoError(t, err)
	require.NoError(t, h.Stop(t.Context()))
	used, _ := h.Usage()
	assert.GreaterOrEqual(t, used, 20*time.Millisecond)
}
