package benchmarks

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// proxy is a running kube-proxy.
type proxy struct {
	cmd   *exec.Cmd
	log   string
	path  string // PATH, in which the right iptables is the first
	ended chan struct{}
	peak  *peak
}

// startProxy starts a program on the node. Both get the same flags: kube-proxy's defaults, except for what affects the
// whole machine.
func startProxy(b *testing.B, c *cluster.Cluster, n *network, program string, m mode) *proxy {
	dir := b.TempDir()
	relay := c.Relay(b, n.node.Do)
	p := &proxy{log: filepath.Join(dir, "log"), path: os.Getenv("PATH"), ended: make(chan struct{})}
	if m.iptables != "" {
		p.path = linkIPTables(b, m.iptables) + ":" + p.path
	}
	log, err := os.Create(p.log)
	require.NoError(b, err)
	p.cmd = exec.Command(program,
		"--kubeconfig="+c.AdminKubeconfig(relay.Port), "--proxy-mode="+m.proxyMode, "--hostname-override="+nodeName,
		"--cluster-cidr="+podCIDR().String(), "--healthz-bind-address=127.0.0.1:10256",
		"--metrics-bind-address=127.0.0.1:10249",
		"--oom-score-adj=0", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0")
	p.cmd.Env = append(os.Environ(), "PATH="+p.path)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// The thread that starts it is the namespace's, which lasts as long as the test.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(b, n.inNode(p.cmd.Start))
	p.peak = watchPeak(p.cmd.Process.Pid)
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		_ = log.Close()
		close(p.ended)
	}()
	b.Cleanup(p.stop)
	return p
}

// stop ends the proxy. Its rules end with the namespace.
func (p *proxy) stop() {
	p.peak.stop()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// running returns an error with the end of the log if the proxy has ended.
func (p *proxy) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("the proxy has ended: %s", p.tail())
	default:
		return nil
	}
}

func (p *proxy) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

// linkIPTables makes a folder with the iptables programs of a variant.
func linkIPTables(b *testing.B, variant string) string {
	dir := b.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			// The programs depend on the name that they are called by.
			target, err := filepath.EvalSymlinks(need.Program(b, family+"-"+variant+suffix))
			require.NoError(b, err)
			require.NoError(b, os.Symlink(target, filepath.Join(dir, family+suffix)))
		}
	}
	return dir
}

// rules counts the rules of iptables in all tables.
func (p *proxy) rules(n *network) (count int, err error) {
	err = n.inNode(func() error {
		save := filepath.Join(strings.Split(p.path, ":")[0], "iptables-save")
		out, err := exec.Command(save).Output()
		if err != nil {
			return err
		}
		count = bytes.Count(out, []byte("\n-A "))
		return nil
	})
	return count, err
}
