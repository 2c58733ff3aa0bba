package dropin_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// modes are the proxy modes that are tested.
var modes = []string{"nftables", "iptables"}

// waitTimeout is how long to wait for what is expected.
const waitTimeout = 10 * time.Minute

var buildFolder string

func TestMain(m *testing.M) {
	var err error
	if buildFolder, err = os.MkdirTemp("", "kube-proxy-lib-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(buildFolder)
	os.Exit(code)
}

// build and buildBrain build cmd/kube-proxy and cmd/brain, once, with the modules that releases have.
var (
	build      = sync.OnceValues(func() (string, error) { return buildExample("kube-proxy") })
	buildBrain = sync.OnceValues(func() (string, error) { return buildExample("brain") })
)

func buildExample(name string) (string, error) {
	path := filepath.Join(buildFolder, name)
	cmd := exec.Command("go", "build", "-modfile=cmd/programs.mod", "-o", path, "./cmd/"+name)
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}

// program is a running child process.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended; err is its error then
	err   error

	mu  sync.Mutex
	log bytes.Buffer
	new chan struct{} // closed when there is more in the log
}

// start starts the program on the node. It is killed when the test ends.
func (l *lab) start(args ...string) *program {
	l.t.Helper()
	return l.run(nil, mustBuild(l.t), args...)
}

func mustBuild(t *testing.T) (path string) {
	t.Helper()
	path, err := build()
	require.NoError(t, err)
	return path
}

func mustBuildBrain(t *testing.T) (path string) {
	t.Helper()
	path, err := buildBrain()
	require.NoError(t, err)
	return path
}

// run starts a program on the node, with something added to the environment. It is killed when the test ends.
func (l *lab) run(env []string, path string, args ...string) *program {
	l.t.Helper()
	p := &program{t: l.t, cmd: exec.Command(path, args...), ended: make(chan struct{}), new: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p, p, append(os.Environ(), env...)
	// The kernel kills it with the thread that started it, which belongs to the namespace. So nothing is left behind,
	// however the test ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.node.Do(p.cmd.Start)
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	l.t.Cleanup(func() {
		p.kill()
		if l.t.Failed() {
			l.t.Logf("%s printed:\n%s", filepath.Base(path), p.logged())
		}
	})
	return p
}

// Write implements io.Writer, for what the program prints.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.new)
	p.new = make(chan struct{})
	return p.log.Write(b)
}

func (p *program) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// awaitLog waits until the program has printed a line for which ok returns true.
func (p *program) awaitLog(what string, ok func(log string) bool) {
	p.t.Helper()
	deadline := time.After(waitTimeout)
	for {
		p.mu.Lock()
		log, more := p.log.String(), p.new
		p.mu.Unlock()
		if ok(log) {
			return
		}
		select {
		case <-more:
		case <-p.ended:
			if !ok(p.logged()) {
				p.t.Fatalf("the program ended before it said: %s", what)
			}
			return
		case <-deadline:
			p.t.Fatalf("the program does not say: %s", what)
		}
	}
}

// await waits until ok returns true.
func (p *program) await(what string, ok func() bool) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return ok()
		}
	}, waitTimeout, 50*time.Millisecond, what)
	require.True(p.t, ok(), "the program ended before: %s", what)
}

// kill is SIGKILL.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// terminate is SIGTERM. It returns when the program has ended, as it should, without an error.
func (p *program) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.wait()
	require.NoError(p.t, p.err)
}

// wait waits until the program ends by itself.
func (p *program) wait() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(waitTimeout):
		p.t.Fatal("the program does not end")
	}
}

// config writes a configuration file for the node.
func (l *lab) config(mode, kubeconfig string) (path string) {
	path = filepath.Join(l.t.TempDir(), "config.yaml")
	require.NoError(l.t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: %s
clientConnection:
  kubeconfig: %s
hostnameOverride: %s
detectLocalMode: ClusterCIDR
detectLocal:
  clusterCIDRs: [%q, %q]
linux:
  oomScoreAdj: 0
  conntrack:
    maxPerCore: 0 # the limit is the machine's
`, mode, kubeconfig, nodeName, podCIDRs[0], podCIDRs[1]), 0o600))
	return path
}

// flags is the same configuration as command-line flags.
func (l *lab) flags(mode, kubeconfig string) []string {
	return []string{
		"--proxy-mode=" + mode, "--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName,
		"--cluster-cidr=" + strings.Join(podCIDRs[:], ","),
		"--oom-score-adj=0", "--conntrack-max-per-core=0",
	}
}

// get asks the program for something by HTTP, on the node, and returns the status code and the body.
func (l *lab) get(url string) (int, string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			onThread(l.node, func() { conn, err = net.DialTimeout(network, address, 5*time.Second) })
			return conn, err
		},
	}}
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}
