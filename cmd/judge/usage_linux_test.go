package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Memory is that of the process with its children, and processor time that of all, more exactly than in ticks.
func TestUsageIncludesChildren(t *testing.T) {
	log, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer log.Close()
	// The first child works and ends, the second one stays.
	cmd := exec.Command("sh", "-c", "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); exec 3<&0; cat <&3 & wait")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Unshareflags = 0 // not everybody may
	p, err := start(cmd, log)
	require.NoError(t, err)
	defer p.stop()
	pid := cmd.Process.Pid
	require.Eventually(t, func() bool { _, memory := p.usage(); return memory > peakMemory(fmt.Sprintf("/proc/%d", pid)) },
		time.Minute, 10*time.Millisecond)
	processor, most := p.usage()
	assert.GreaterOrEqual(t, processor, 10*time.Millisecond, "that of the child that has ended")
	assert.NotZero(t, processor%(10*time.Millisecond), "more exact than ticks")
	require.NoError(t, in.Close())
	<-p.ended
	_, memory := p.usage()
	assert.GreaterOrEqual(t, memory, most, "a peak stays")
}
