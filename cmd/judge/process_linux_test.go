package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// When the judge is killed, its end of the guard's pipe is closed, and all that the program has started ends.
func TestTheProgramEndsWithTheJudge(t *testing.T) {
	output, log, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = output.Close() }()
	p := started(t, "sleep 1000 & echo ready; wait; true", log)
	require.NoError(t, log.Close())
	_, err = io.ReadFull(output, make([]byte, len("ready\n")))
	require.NoError(t, err)

	require.NoError(t, p.guard.held.Close())
	<-p.ended
	rest, err := io.ReadAll(output) // until nobody has it any more
	require.NoError(t, err)
	assert.Empty(t, rest)
	assert.ErrorContains(t, p.err, "killed")
	assert.False(t, p.stop(), "that has ended by itself")
}

// started starts a command with the mounts of the test, because not everybody may have others.
func started(t *testing.T, command string, log *os.File) *process {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Unshareflags = 0
	p, err := start(cmd, log)
	require.NoError(t, err)
	return p
}

// The shell ends at once when it gets the signal, and may have to wait for the program.
func TestAProgramThatTakesTimeToEnd(t *testing.T) {
	folder := t.TempDir()
	script := filepath.Join(folder, "program")
	require.NoError(t, os.WriteFile(script, []byte(`trap 'sleep 0.1; echo bye >`+folder+`/bye; exit' TERM
echo ready
while :; do sleep 0.01; done`), 0o600))
	for _, command := range []string{"sh " + script, "sh " + script + "; true", "sh " + script + " | cat"} {
		output, log, err := os.Pipe()
		require.NoError(t, err)
		p := started(t, command, log)
		_, err = io.ReadFull(output, make([]byte, len("ready\n")))
		require.NoError(t, err)
		assert.False(t, p.stop(), "killed: %s", command)
		assert.FileExists(t, filepath.Join(folder, "bye"), command)
		require.NoError(t, errors.Join(os.Remove(filepath.Join(folder, "bye")), log.Close(), output.Close()))
	}
}

// A log may be larger than the memory, and a line of it, too.
func TestTheEndOfALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("line\n", 100_000)+"the last one\n"), 0o600))
	assert.Equal(t, strings.Repeat("line\n", 14)+"the last one", tail(path, 0))
	assert.Equal(t, "line\nthe last one", tail(path, int64(len("line\n")*99_999)))
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 1<<20)), 0o600))
	assert.Len(t, tail(path, 0), 64<<10)
	require.NoError(t, os.WriteFile(path, []byte("short\n"), 0o600))
	assert.Equal(t, "short", tail(path, 0))
	assert.Equal(t, "short", tail(path, 1<<20), "it was longer, and somebody has truncated it")
}

// A clean-up that hangs ends when its time is over, with all that it has started.
func TestACommandThatHangsEnds(t *testing.T) {
	need.Root(t)
	folder := t.TempDir()
	log, err := os.Create(filepath.Join(folder, "log"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	h := &host{folder: folder, logFile: log, values: map[string]string{"dir": folder}}
	hangs := filepath.Join(folder, "hangs")
	require.NoError(t, syscall.Mkfifo(hangs, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f, err := os.Open(hangs) // waits until somebody opens it for writing
		if assert.NoError(t, err) {
			cancel()
			_, _ = io.Copy(io.Discard, f) // until nobody has it any more
		}
	}()
	assert.ErrorContains(t, h.run(ctx, "echo begun; sh -c 'exec 3>{dir}/hangs; sleep 1000; true'; true"), "killed")
	<-ended
	text, err := os.ReadFile(log.Name())
	require.NoError(t, err)
	assert.Contains(t, string(text), "begun\n")
}
