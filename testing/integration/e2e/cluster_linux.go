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
	"slices"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// Options configures a cluster.
type Options struct {
	// Dir is the folder of everything that the cluster writes. It must not exist, be empty, or be of a cluster that has
	// ended, whose logs Up removes.
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
	PID     int     `json:"pid"` // of the machine's first process; 0 after the end
}

// stateFile is the name of the file with the state.
const stateFile = "state.json"

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

// Up starts a cluster, and returns when its nodes and DNS are ready. It runs until Down or End.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.makeDir(); err != nil {
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
	if err := writeJSON(o.file(stateFile), c.state); err != nil {
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
	return nil, fmt.Errorf("the cluster is not ready: %w\n%s\nThe logs stay in %s",
		errors.Join(err, removeCgroups(o.cgroup()), c.keepLogs()), tail, o.Dir)
}

// makeDir makes the folder of a new cluster.
func (o Options) makeDir() error {
	var before state
	if err := readJSON(o.file(stateFile), &before); err == nil && before.PID == 0 && before.Options.Dir == o.Dir {
		if err := os.RemoveAll(o.Dir); err != nil {
			return fmt.Errorf("the logs of a cluster that has ended: %w", err)
		}
	}
	if entries, err := os.ReadDir(o.Dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: is a cluster running? `cluster down --dir %[1]s` ends it", o.Dir)
	}
	return os.MkdirAll(o.Dir, 0o755)
}

// ErrEnded says that a folder has the logs of a cluster that has ended.
var ErrEnded = errors.New("the cluster has ended")

// Open returns the cluster that runs in a folder. If it has ended, the error is [ErrEnded], and only Down works.
func Open(dir string) (*Cluster, error) {
	c := &Cluster{}
	if err := readJSON(filepath.Join(dir, stateFile), &c.state); err != nil {
		return nil, fmt.Errorf("no cluster: %w", err)
	}
	if c.PID == 0 {
		return c, fmt.Errorf("%w, its logs are in %s", ErrEnded, dir)
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

// Command returns a command that runs in the namespaces of a node or, if the name is empty, of the machine that all are
// connected to, which is outside of the cluster. It sees the files of this machine, except that a node has /var, /run,
// /proc and /sys of its own.
func (c *Cluster) Command(ctx context.Context, node string, args ...string) (*exec.Cmd, error) {
	if node == "" {
		return c.inside(ctx, nil, args...), nil
	}
	i, err := c.index(node)
	if err != nil {
		return nil, err
	}
	return c.inside(ctx, &c.nodes[i], args...), nil
}

// index is where c.nodes has a node.
func (c *Cluster) index(node string) (int, error) {
	i := slices.IndexFunc(c.nodes, func(n nodeConfig) bool { return n.Name == node })
	if i < 0 {
		return 0, fmt.Errorf("there is no node %q", node)
	}
	return i, nil
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

// Down ends a cluster, unless it has ended, and removes its folder.
func (c *Cluster) Down(ctx context.Context) error {
	if err := c.endProcesses(ctx); err != nil {
		return err
	}
	return os.RemoveAll(c.Options.Dir)
}

// End ends a cluster. Its folder stays, with all logs, but without the images and volumes of the nodes.
func (c *Cluster) End(ctx context.Context) error {
	if err := c.endProcesses(ctx); err != nil {
		return err
	}
	return c.keepLogs()
}

// endProcesses ends all processes of the cluster. The kernel then removes its mounts and namespaces.
func (c *Cluster) endProcesses(ctx context.Context) error {
	if c.PID == 0 {
		return nil
	}
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the machine: %w", err)
	}
	return poll(ctx, "the machine's processes end", func() (bool, error) {
		err := removeCgroups(c.Options.cgroup()) // not while they have processes
		return err == nil, err
	})
}

// keepLogs notes that the cluster has ended, and removes what is big from its folder.
func (c *Cluster) keepLogs() error {
	c.PID = 0
	big, err := filepath.Glob(c.Options.file("nodes/*/var/lib"))
	if err != nil {
		return err
	}
	for _, dir := range big {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(err, writeJSON(c.Options.file(stateFile), c.state))
}

// Programs returns the folder into which the script build puts the programs. Its other output is beside it.
func Programs() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "kube-proxy-lib/e2e/bin"), nil
}
