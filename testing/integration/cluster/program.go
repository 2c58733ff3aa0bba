package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is a child process that writes its output to a file.
type program struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when the process has exited
}

// run starts a program that is killed when the test ends.
func run(t testing.TB, dir, name, path string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(path, args...), log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends, so this thread waits for the child. However the
		// test ends, no process remains.
		runtime.LockOSThread()
		p.cmd.SysProcAttr = dieWithParent()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		_ = log.Close()
		close(p.ended)
	}()
	require.NoError(t, <-started, name)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, p.tail())
		}
	})
	return p
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// tail returns the end of the program's output.
func (p *program) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(b, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
}

// root is the folder of the module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "kubernetes-versions")); err == nil {
			return dir
		}
		require.NotEqual(t, filepath.Dir(dir), dir, "kubernetes-versions is in no folder above this test")
		dir = filepath.Dir(dir)
	}
}

// versions returns the versions in the file kubernetes-versions. The rest of each line is for ./build.
func versions(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), "kubernetes-versions"))
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "v") {
			out = append(out, strings.Fields(line)[0])
		}
	}
	require.NotEmpty(t, out)
	return out
}
