package python

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// timeout is how long to wait for expected events.
const timeout = 5 * time.Minute

// systemPython is the Python that has the system's packages.
const systemPython = "/usr/bin/python3"

// build generates the messages for Python, and builds the program that the client is compared with. It returns their
// directory.
func build(t *testing.T) string {
	protoc, python := need.Program(t, "protoc"), need.Program(t, systemPython)
	err := exec.CommandContext(t.Context(), python, "-c", "import grpc, google.protobuf").Run()
	need.That(t, err == nil, "gRPC and Protobuf for Python (Debian: apt-get install python3-grpcio python3-protobuf)")
	dir := t.TempDir()
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(t.Context(), protoc, "--python_out="+dir, "-I", "../../remote/v1", "remote.proto"),
		exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "kubectl-serviceproxy"),
			"../../cmd/kubectl-serviceproxy"),
	} {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v: %s", cmd, out)
	}
	return dir
}

// python returns the client, ready to run.
func python(t *testing.T, dir, target, node string, more ...string) *exec.Cmd {
	args := append([]string{"print_state.py", "--server", target, "--node-name", node}, more...)
	cmd := exec.CommandContext(t.Context(), need.Program(t, systemPython), args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// serve runs a brain over the files of a directory until the test ends, or stop is called.
func serve(t *testing.T, dir, target string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	source, err := watch.NewFiles(dir)
	require.NoError(t, err)
	server, err := brain.New(ctx, brain.Options{Source: source})
	require.NoError(t, err)
	listener, err := brain.Listen(ctx, target, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, server.Run(ctx)) })
	wg.Go(func() { assert.NoError(t, server.Serve(ctx, listener, brain.ServeOptions{})) })
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return server.Ready() == nil }, timeout, time.Millisecond)
	return stop
}

// The client in Python prints what kubectl serviceproxy state prints: for nodes in several zones and an unknown node;
// after changes, both of what all nodes share and of a node's own part; and after the brain was replaced.
func TestPythonPrintsWhatPrintStatePrints(t *testing.T) {
	dir := build(t)
	objects, sockets := t.TempDir(), testkit.SocketDir(t)
	target := "unix://" + filepath.Join(sockets, "brain.sock")
	require.NoError(t, os.CopyFS(objects, os.DirFS("../mock/cluster")))
	hard, err := os.ReadFile("testdata/hard.yaml")
	require.NoError(t, err)
	write := func(text string) {
		hidden := filepath.Join(objects, "hard.yaml.tmp")
		require.NoError(t, os.WriteFile(hidden, []byte(text), 0o644))
		require.NoError(t, os.Rename(hidden, filepath.Join(objects, "hard.yaml")))
	}
	write(string(hard))
	stop := serve(t, objects, target)

	want := func(node string) string {
		program := filepath.Join(dir, "kubectl-serviceproxy")
		cmd := exec.CommandContext(t.Context(), program, "state", "--brain", target, "--node", node,
			"--timeout", timeout.String())
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	for _, node := range []string{"node-1", "node-2", "unknown"} {
		out, err := python(t, dir, target, node, "--once").Output()
		require.NoError(t, err)
		assert.Equal(t, want(node), string(out))
	}

	latest := follow(t, python(t, dir, target, "node-1"))
	before := ""
	changes := func() {
		t.Helper()
		now := ""
		require.Eventually(t, func() bool {
			now = want("node-1")
			return now != before && now == latest()
		}, timeout, 10*time.Millisecond)
		before = now
	}
	changes()
	write(strings.NewReplacer(`"10.1.1.61"`, `"10.1.1.66"`, "name: node-2}]}", "name: node-1}]}",
		`"192.168.0.0/24", `, "", "31001", "31002", "timeoutSeconds: 10800", "timeoutSeconds: 75").
		Replace(string(hard)))
	changes()
	stop()
	write("")
	serve(t, objects, target)
	changes()
	assert.NotContains(t, latest(), "hard/")
}

// follow starts a client. latest returns what it printed last: a state begins with the node.
func follow(t *testing.T, cmd *exec.Cmd) (latest func() string) {
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var mu sync.Mutex
	var state string
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			mu.Lock()
			if strings.HasPrefix(lines.Text(), "node ") {
				state = ""
			}
			state += lines.Text() + "\n"
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait() // it was killed
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return state
	}
}
