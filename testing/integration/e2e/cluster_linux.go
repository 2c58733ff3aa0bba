package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// Options configures a cluster.
type Options struct {
	// Dir is the folder of everything that the cluster writes. It must not exist, or be empty.
	Dir string `json:"dir"`
	// Nodes is the number of nodes.
	Nodes int `json:"nodes"`
	// Programs is the folder of programs that the script build has filled.
	Programs string `json:"programs"`
	// Version is that of Kubernetes. Default: that of package cluster.
	Version string `json:"version"`
	// FeatureGates are gates of Kubernetes' programs, for example "A=true,B=false".
	FeatureGates string `json:"featureGates,omitempty"`
}

// nodesFile is the name of the file with the nodes of a running cluster.
const nodesFile = "nodes.json"

// state is what a running cluster writes into its folder.
type state struct {
	Options Options `json:"options"`
	PID     int     `json:"pid"` // of the machine's first process
}

// Cluster is a running cluster.
type Cluster struct {
	state
	nodes []nodeConfig
}

func (o Options) kubernetes() string {
	return filepath.Join(filepath.Dir(o.Programs), "../kubernetes", o.Version)
}

func (o Options) images() string { return filepath.Join(filepath.Dir(o.Programs), "images.tar") }

// cgroup is the name of the cluster's cgroups.
func (o Options) cgroup() string { return "kube-proxy-lib-" + filepath.Base(o.Dir) }

func (o Options) file(name string) string { return filepath.Join(o.Dir, name) }

// Up starts a cluster, and returns when its nodes and DNS are ready. It runs until Down.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if entries, err := os.ReadDir(o.Dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty: is a cluster running?", o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	if o.Version == "" {
		o.Version = cluster.Version(&host{ctx: ctx, dir: o.Dir})
	}
	// The listener stays in this network namespace, though a process in another one serves it.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	defer write.Close()
	log, err := os.OpenFile(o.file("machine.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", machineCommand, string(options))
	cmd.ExtraFiles = []*os.File{listener, write}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the machine: %w", err)
	}
	_ = write.Close()
	c := &Cluster{state: state{Options: o, PID: cmd.Process.Pid}}
	if err := writeJSON(o.file("state.json"), c.state); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	ready := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(read).ReadString('\n')
		ready <- err
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		return Open(o.Dir)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	tail, _ := os.ReadFile(o.file("machine.log"))
	return nil, fmt.Errorf("the cluster is not ready: %w\n%s", errors.Join(err, removeCgroups(o.cgroup())), tail)
}

// Open returns the cluster that runs in a folder.
func Open(dir string) (*Cluster, error) {
	c := &Cluster{}
	if err := readJSON(filepath.Join(dir, "state.json"), &c.state); err != nil {
		return nil, fmt.Errorf("no cluster: %w", err)
	}
	if err := readJSON(filepath.Join(dir, nodesFile), &c.nodes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no nodes: %w", err)
	}
	return c, nil
}

func readJSON(path string, to any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// inside returns a command that runs in the namespaces of the machine or, unless it is nil, of a node.
func (c *Cluster) inside(ctx context.Context, n *nodeConfig, args ...string) *exec.Cmd {
	if n == nil {
		return inside(ctx, c.PID, args...)
	}
	outer := inside(ctx, c.PID)
	outer.Args = append(outer.Args, n.inside(ctx, args...).Args...)
	outer.Env = append(os.Environ(), "PATH="+n.Path)
	return outer
}

// Restarts returns how often nodes were started again, because a test rebooted them, or because kubelet or containerd
// exited.
func (c *Cluster) Restarts() (int, error) {
	var nodes []nodeConfig
	if err := readJSON(c.Options.file(nodesFile), &nodes); err != nil {
		return 0, fmt.Errorf("no nodes: %w", err)
	}
	all := 0
	for _, n := range nodes {
		all += n.Restarts
	}
	return all, nil
}

// Kubeconfig returns the path of a kubeconfig with all rights, for programs outside the cluster's namespaces.
func (c *Cluster) Kubeconfig() string { return c.Options.file("kubeconfig") }

// Down ends a cluster and removes its folder.
func (c *Cluster) Down(ctx context.Context) error {
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the machine: %w", err)
	}
	if err := poll(ctx, "the machine's processes end", func() (bool, error) {
		err := removeCgroups(c.Options.cgroup()) // not while they have processes
		return err == nil, err
	}); err != nil {
		return err
	}
	return os.RemoveAll(c.Options.Dir)
}

// Programs returns the folder into which the script build puts the programs. Its other output is beside it.
func Programs() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "kube-proxy-lib/e2e/bin"), nil
}
