package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/internal/localaddr"
)

// The networks of the machine's namespace: a bridge with the machine and all nodes, and a part of each node's podCIDRs.
const (
	bridge         = "nodes"
	machineIPv4    = "172.31.0.1"
	machineIPv6    = "fd00:31::1"
	dnsIPv4        = "10.96.0.10"
	clusterDomain  = "cluster.local"
	serviceCIDRs   = "10.96.0.0/12,fd00:96::/108"
	clusterCIDRs   = "10.244.0.0/16,fd00:244::/48"
	machineCommand = "machine"
)

// runMachine is the process with ID 1 of the machine's namespaces. It runs the control plane and is the parent of every
// node, until it gets SIGTERM. File 3 is a listener in the namespace in which it was started; "ready" is written to
// file 4.
func runMachine(o Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ready := os.NewFile(4, "ready")
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return fmt.Errorf("the listener for kubectl: %w", err)
	}
	t := &host{ctx: ctx, dir: filepath.Join(o.Dir, "control-plane")}
	defer t.cleanup()
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return err
	}
	if err := mountMachine(); err != nil {
		return err
	}
	// The control plane gets as much as all nodes together.
	if err := o.enterCgroups(machineCommand, 0, o.Nodes); err != nil {
		return err
	}
	if err := makeBridge(); err != nil {
		return err
	}
	c := cluster.Start(t, cluster.Options{ServiceCIDRs: serviceCIDRs, Address: machineIPv4, FeatureGates: o.FeatureGates})
	server := fmt.Sprintf("127.0.0.1:%d", c.Port())
	testkit.NewRelay(listener, "tcp", server, func(err error) { fmt.Fprintln(os.Stderr, "relay for kubectl:", err) })
	m := &machine{o: o, cluster: c, server: fmt.Sprintf("%s:%d", machineIPv4, c.Port())}
	if err := copyFile(c.AdminKubeconfigFor("outside", listener.Addr().String()), m.file("kubeconfig")); err != nil {
		return err
	}
	if err := copyFile(c.AdminKubeconfigFor("inside", m.server), m.file("kubeconfig-inside")); err != nil {
		return err
	}
	if err := m.startNodes(ctx); err != nil {
		return err
	}
	if err := m.startDNS(ctx); err != nil {
		return err
	}
	// Without it no pod can be created.
	if err := poll(ctx, "kube-controller-manager makes the default ServiceAccount", func() (bool, error) {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	}); err != nil {
		return err
	}
	if _, err := io.WriteString(ready, "ready\n"); err != nil {
		return err
	}
	_ = ready.Close()
	return m.balance(ctx)
}

// machine is what runs in the namespace of the machine.
type machine struct {
	o       Options
	cluster *cluster.Cluster
	server  string // the API server's address for nodes and pods
	nodes   []*node

	restarts sync.Mutex // of one node at a time
}

func (m *machine) file(name string) string { return filepath.Join(m.o.Dir, name) }

// startNodes starts all nodes, and returns when all are ready.
func (m *machine) startNodes(ctx context.Context) error {
	var starts sync.WaitGroup
	errs := make(chan error, m.o.Nodes)
	for i := range m.o.Nodes {
		n := m.newNode(i + 1)
		m.nodes = append(m.nodes, n)
		if err := n.create(ctx); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		starts.Go(func() {
			if err := n.start(ctx); err != nil {
				errs <- fmt.Errorf("node %s: %w", n.Name, err)
			}
		})
	}
	starts.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	for _, n := range m.nodes {
		if err := n.waitReady(ctx); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if err := m.writeNodes(); err != nil {
		return err
	}
	for _, n := range m.nodes {
		go m.keepRunning(ctx, n)
	}
	return nil
}

// writeNodes writes the file that [Open] reads, atomically.
func (m *machine) writeNodes() error {
	var configs []nodeConfig
	for _, n := range m.nodes {
		configs = append(configs, n.nodeConfig)
	}
	file := m.file(nodesFile)
	if err := writeJSON(file+".new", configs); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// keepRunning starts a node again whenever its first process ends: ending that reboots the node.
func (m *machine) keepRunning(ctx context.Context, n *node) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.ended:
		}
		m.restarts.Lock()
		n.Restarts++
		err := os.Remove(n.pidFile()) // its number may be another process' now
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = n.start(ctx)
		}
		if err == nil {
			err = m.writeNodes()
		}
		m.restarts.Unlock()
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "node %s does not start again: %v\n", n.Name, err)
			return
		}
	}
}

// mountMachine makes the mounts of the machine's namespace its own.
func mountMachine() error {
	if err := makePrivate(); err != nil {
		return err
	}
	// /sys stays the one from outside: the cgroups are mounted below it.
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	return mount("tmpfs", "/run", "tmpfs", 0, "")
}

// makeBridge makes the network that all nodes are in.
func makeBridge() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := setSysctls(map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/fib_multipath_hash_policy": "1", "net/ipv6/fib_multipath_hash_policy": "1"}); err != nil {
		return err
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	return addAddresses(br, machineIPv4+"/16", machineIPv6+"/64")
}

func addAddresses(link netlink.Link, addresses ...string) error {
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
		address.Flags |= syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("address %s of %s: %w", text, link.Attrs().Name, err)
		}
		if ip, ok := netip.AddrFromSlice(address.IP); ok {
			if err := localaddr.Await(ip.Unmap()); err != nil {
				return fmt.Errorf("link %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}

func setSysctls(values map[string]string) error {
	for name, value := range values {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// startTimeout is how long to wait for a program to start, or to end, on a busy machine.
const startTimeout = 5 * time.Minute

// poll calls done until it returns true, at most for startTimeout. It is for conditions without an event to wait for.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s within %v: %w", what, startTimeout, errors.Join(err, context.Cause(ctx)))
		case <-time.After(200 * time.Millisecond):
		}
	}
}
