package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAClusterThatHasEndedLeavesItsLogsUntilTheNextOne(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "no-cluster-of-this-name")}
	require.NoError(t, o.makeDir())
	for _, name := range []string{"machine.log", "nodes/n1/kubelet.log", "nodes/n1/var/lib/containerd/image",
		"nodes/n1/var/log/pods/web.log"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(o.file(name)), 0o755))
		require.NoError(t, os.WriteFile(o.file(name), nil, 0o644))
	}
	machine := exec.Command("cat") // which waits for its input
	_, err := machine.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, machine.Start())
	c := &Cluster{state: state{Options: o, PID: machine.Process.Pid}}
	require.NoError(t, writeJSON(o.file(stateFile), c.state))
	require.ErrorContains(t, o.makeDir(), "is a cluster running?")
	_, err = Open(o.Dir)
	require.NoError(t, err)
	other := Options{Dir: t.TempDir()}
	require.NoError(t, os.WriteFile(other.file(stateFile), []byte("{}"), 0o644))
	require.ErrorContains(t, other.makeDir(), "is a cluster running?", "whose folder that is, is not known")

	require.NoError(t, c.End(t.Context()))
	assert.ErrorContains(t, machine.Wait(), "killed")
	assert.FileExists(t, o.file("machine.log"))
	assert.FileExists(t, o.file("nodes/n1/kubelet.log"))
	assert.FileExists(t, o.file("nodes/n1/var/log/pods/web.log"))
	assert.NoDirExists(t, o.file("nodes/n1/var/lib"), "images are big")
	ended, err := Open(o.Dir)
	require.ErrorIs(t, err, ErrEnded)

	require.NoError(t, o.makeDir(), "another cluster may begin")
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	require.NoError(t, ended.Down(t.Context()))
	assert.NoDirExists(t, o.Dir)
}
