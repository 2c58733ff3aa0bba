package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodeCommand = "node"

// node is one node: a process with ID 1 that runs containerd and kubelet in namespaces of its own.
type node struct {
	nodeConfig
	m     *machine
	cmd   *exec.Cmd
	ended chan struct{} // the first process has ended
}

// nodeConfig is the configuration of a node's first process.
type nodeConfig struct {
	Name string `json:"name"`
	// Dir is the node's folder: its root filesystem, logs and configuration.
	Dir string `json:"dir"`
	// IPs and PodCIDRs have one element for IPv4 and one for IPv6.
	IPs      []string `json:"ips"`
	PodCIDRs []string `json:"podCIDRs"`
	// Visible are the files and folders of the machine that stay visible, at their path, in the node's private folders.
	Visible []string `json:"visible"`
	// Zone is the node's zone, of three.
	Zone string `json:"zone"`
	// Path is PATH.
	Path string `json:"path"`
	// PID is the ID of the first process, as the machine sees it.
	PID int `json:"pid"`
	// Restarts is how often the node was started again.
	Restarts int `json:"restarts"`
}

func (m *machine) newNode(number int) *node {
	name := fmt.Sprintf("n%d", number)
	return &node{m: m, nodeConfig: nodeConfig{Name: name, Dir: m.file(filepath.Join("nodes", name)),
		IPs:      []string{fmt.Sprintf("172.31.1.%d", number), fmt.Sprintf("fd00:31::1:%d", number)},
		PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", number), fmt.Sprintf("fd00:244:0:%x::/64", number)},
		Zone:     fmt.Sprintf("zone-%d", 1+(number-1)%3),
		Visible:  []string{m.o.Dir, m.o.Programs},
		Path:     strings.Join([]string{m.o.Programs, m.o.kubernetes(), os.Getenv("PATH")}, ":")}}
}

func (n *node) file(name string) string { return filepath.Join(n.Dir, name) }

// create makes the node's folder, and its object in the API, so that kubelet finds its podCIDRs there.
func (n *node) create(ctx context.Context) error {
	for _, dir := range []string{"root", "var"} {
		if err := os.MkdirAll(n.file(dir), 0o755); err != nil {
			return err
		}
	}
	nodes := n.m.cluster.Client.CoreV1().Nodes()
	_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name,
		Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux",
			corev1.LabelTopologyZone: n.Zone}},
		Spec: corev1.NodeSpec{PodCIDR: n.PodCIDRs[0], PodCIDRs: n.PodCIDRs}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the object: %w", err)
	}
	return n.writeConfiguration()
}

// start starts the node's first process, connects the node to the others, and loads the images.
func (n *node) start(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer write.Close()
	log, err := os.OpenFile(n.file("init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	config, err := json.Marshal(n.nodeConfig)
	if err != nil {
		return err
	}
	n.cmd = exec.Command("/proc/self/exe", nodeCommand, string(config))
	n.cmd.ExtraFiles = []*os.File{read}
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("the first process: %w", err)
	}
	_ = read.Close()
	n.PID = n.cmd.Process.Pid
	n.ended = make(chan struct{})
	starting, started := context.WithCancelCause(ctx)
	defer started(nil)
	go func() {
		defer close(n.ended)
		if err := n.cmd.Wait(); ctx.Err() == nil {
			said, _ := os.ReadFile(log.Name())
			err = fmt.Errorf("node %s has ended: %w: %s", n.Name, err, said)
			fmt.Fprintln(os.Stderr, err)
			started(err)
		}
	}()
	if err := n.m.o.enterCgroups(n.Name, n.PID, 1); err != nil {
		return err
	}
	if err := n.connect(); err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	if _, err := io.WriteString(write, "connected\n"); err != nil {
		return fmt.Errorf("the first process: %w", err)
	}
	return n.loadImages(starting)
}

// connect gives the node an end of a pair of interfaces whose other one is on the bridge, and routes to its pods.
func (n *node) connect() error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	// Remove the interface from before a reboot: the kernel removes it only a while after the last process.
	if old, err := netlink.LinkByName(n.Name); err == nil {
		if err := netlink.LinkDel(old); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) &&
			!errors.Is(err, syscall.ENODEV) {
			return fmt.Errorf("the old interface %s: %w", n.Name, err)
		}
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: n.Name, MasterIndex: br.Attrs().Index}, PeerName: "eth0",
		PeerNamespace: netlink.NsPid(n.PID)}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("interface %s: %w", n.Name, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("interface %s: %w", n.Name, err)
	}
	for i, cidr := range n.PodCIDRs {
		if err := addRoute(br, cidr, n.IPs[i]); err != nil {
			return err
		}
	}
	return nil
}

func addRoute(link netlink.Link, cidr, via string) error {
	_, to, err := net.ParseCIDR(cidr)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: net.ParseIP(via)}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("route to %s via %s: %w", cidr, via, err)
	}
	return nil
}

// inside returns a command that runs in the node's namespaces, for the machine to run.
func (c nodeConfig) inside(ctx context.Context, args ...string) *exec.Cmd {
	cmd := inside(ctx, c.PID, args...)
	cmd.Env = append(os.Environ(), "PATH="+c.Path)
	return cmd
}

// inside returns a command that runs in the namespaces of a process.
func inside(ctx context.Context, pid int, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + strconv.Itoa(pid), "--mount", "--uts",
		"--ipc", "--net", "--pid", "--cgroup", "--"}, args...)...)
}

// loadImages waits for containerd, and gives it the images.
func (n *node) loadImages(ctx context.Context) error {
	err := poll(ctx, "containerd answers", func() (bool, error) {
		out, err := n.inside(ctx, "ctr", "version").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return importImages(n.inside(ctx, importArgs(n.m.o.images())...))
}

// importArgs are the arguments of a command that gives an archive of images to the containerd of a node.
func importArgs(archive string) []string {
	return []string{"ctr", "-n", "k8s.io", "images", "import", archive}
}

func importImages(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, out)
	}
	return nil
}

// waitReady waits until kubelet says that the node is ready.
func (n *node) waitReady(ctx context.Context) error {
	return poll(ctx, "is ready", func() (bool, error) {
		o, err := n.m.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				if c.Status == corev1.ConditionTrue {
					return true, nil
				}
				err = fmt.Errorf("kubelet says: %s", c.Message)
			}
		}
		return false, err
	})
}
