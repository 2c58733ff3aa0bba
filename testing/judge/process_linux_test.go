package main

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When the judge is killed, its end of the guard's pipe is closed, and all that the program has started ends.
func TestTheProgramEndsWithTheJudge(t *testing.T) {
	output, log, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = output.Close() }()
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo ready; wait; true")
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Unshareflags = 0 // not everybody may
	p, err := start(cmd, log)
	require.NoError(t, err)
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
