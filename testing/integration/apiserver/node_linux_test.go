package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// Addresses of the test network.
const (
	nodeAddress = "192.0.2.1"
	podsAddress = "192.0.2.2" // of the namespace that all pods are in
	pod1        = "10.244.1.1"
	pod2        = "10.244.1.2"
	podPort     = 8080
)

// node is a node, and pods behind it.
type node struct {
	*testkit.Namespace
	t testing.TB
}

// newNode makes one. Each pod answers a connection with its address.
func newNode(t testing.TB) *node {
	n, pods := &node{testkit.NewNamespace(t), t}, testkit.NewNamespace(t)
	n.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(pods.FD())}
		veth.Name = "eth0"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return errors.Join(up("lo"), up("eth0", nodeAddress+"/24"))
	})
	var listener net.Listener
	pods.Do(func() (err error) {
		if err := errors.Join(up("lo", pod1+"/32", pod2+"/32"), up("eth0", podsAddress+"/24")); err != nil {
			return err
		}
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", podPort))
		return err
	})
	n.Do(func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(podsAddress)}) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.LocalAddr().(*net.TCPAddr).IP.String()) // the client notices
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return n
}

// up sets a link up and adds addresses to it.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, parsed); err != nil {
			return err
		}
	}
	return nil
}

// ask connects from the node, and returns the address of the pod that answers.
func (n *node) ask(to string) (pod string, err error) {
	n.Do(func() error {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp4", to, 500*time.Millisecond); err != nil {
			return nil
		}
		defer conn.Close()
		var answer []byte
		if err = conn.SetDeadline(time.Now().Add(20 * time.Second)); err == nil {
			answer, err = io.ReadAll(conn)
		}
		pod = string(answer)
		return nil
	})
	return pod, err
}

// waitTimeout is how long a test waits for what a proxy does before it counts as stuck.
const waitTimeout = 2 * time.Minute

// until asks an address until the answer is right.
func (n *node) until(p *program, to, what string, right func(pod string, err error) bool) {
	n.t.Helper()
	deadline := time.After(waitTimeout)
	for {
		pod, err := n.ask(to)
		if right(pod, err) {
			return
		}
		select {
		case <-p.ended:
			n.t.Fatalf("kube-proxy has ended before this: %s\n%s", what, p.log())
		case <-deadline:
			n.t.Fatalf("not seen: %s. Last answer: %q, %v\n%s", what, pod, err, p.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reaches waits until a pod answers at an address.
func (n *node) reaches(p *program, to, want string) {
	n.t.Helper()
	n.until(p, to, to+" reaches "+want, func(pod string, err error) bool { return err == nil && pod == want })
}

// program is a program on the node.
type program struct {
	cmd   *exec.Cmd
	file  string
	ended chan struct{}
}

// start starts one. It ends with the test.
func (n *node) start(path string, args ...string) *program {
	n.t.Helper()
	p := &program{cmd: exec.Command(path, args...), file: filepath.Join(n.t.TempDir(), "log"), ended: make(chan struct{})}
	log, err := os.Create(p.file)
	require.NoError(n.t, err)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// The thread that starts it is the namespace's, which lasts as long as the test.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.Do(p.cmd.Start)
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		_ = log.Close()
		close(p.ended)
	}()
	n.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// log returns the end of what the program has printed.
func (p *program) log() string {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
}
