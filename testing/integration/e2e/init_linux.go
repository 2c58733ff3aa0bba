package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// runNode is the process with ID 1 of a node. File 3 is closed when the node is connected.
func runNode(config string) error {
	var n nodeConfig
	if err := json.Unmarshal([]byte(config), &n); err != nil {
		return err
	}
	if os.Getenv("KPL_NODE_CGROUP") == "" {
		return n.enterNamespace()
	}
	if err := syscall.Sethostname([]byte(n.Name)); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := n.mountRoot(); err != nil {
		return err
	}
	if err := n.configureNetwork(); err != nil {
		return err
	}
	return n.supervise()
}

// enterNamespace waits until the node is connected and in its cgroups, makes these the roots of a namespace, and runs
// this program again: a cgroup namespace belongs to a thread, and a new program begins with one thread.
func (n nodeConfig) enterNamespace() error {
	if _, err := bufio.NewReader(os.NewFile(3, "connected")).ReadString('\n'); err != nil {
		return fmt.Errorf("the machine has not connected the node: %w", err)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("namespace of cgroups: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), "KPL_NODE_CGROUP=1"))
}

// private are the folders of the root that each node has for itself. The others are the machine's.
var private = []string{"var", "run", "proc", "sys", "lost+found"}

// mountRoot makes the node's root filesystem and enters it.
func (n nodeConfig) mountRoot() error {
	root := filepath.Join(n.Dir, "root")
	groups, err := cgroupMounts()
	if err != nil {
		return err
	}
	if err := makePrivate(); err != nil {
		return err
	}
	if err := mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := showAtRoot(root, e); err != nil {
			return err
		}
	}
	if err := mount(filepath.Join(n.Dir, "var"), filepath.Join(root, "var"), "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	for _, dir := range []string{"lib", "log", "tmp", "lib/kubelet"} {
		if err := os.MkdirAll(filepath.Join(root, "var", dir), 0o755); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", filepath.Join(root, "run"), "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, path := range n.Visible {
		if err := n.show(root, path); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("sysfs", filepath.Join(root, "sys"), "sysfs", 0, ""); err != nil {
		return err
	}
	if err := mountCgroups(filepath.Join(root, "sys/fs/cgroup"), groups); err != nil {
		return err
	}
	if err := showSysctls(root); err != nil {
		return err
	}
	return enter(root)
}

// showAtRoot makes an entry of the machine's root visible in the node's.
func showAtRoot(root string, e os.DirEntry) error {
	from, to := filepath.Join("/", e.Name()), filepath.Join(root, e.Name())
	switch {
	case e.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !e.IsDir():
		return nil
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if slices.Contains(private, e.Name()) {
		return nil
	}
	return mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, "")
}

// show makes a path of the machine visible that is in a private folder.
func (n nodeConfig) show(root, path string) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !slices.Contains(private, first) {
		return nil
	}
	to := filepath.Join(root, path)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return mount(path, to, "", syscall.MS_BIND, "")
}

// enter makes root the root of all paths.
func enter(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root to %s: %w", root, err)
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	// Volumes that are mounted later have to be seen in containers that share their mounts.
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return err
	}
	return os.Chdir("/")
}

// makePrivate makes all mounts of the namespace its own.
func makePrivate() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	return nil
}

func mount(from, to, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", to, err)
	}
	return nil
}

// showSysctls makes the sysctls that kubelet would set for the whole machine look as if they were set already.
func showSysctls(root string) error {
	for name, value := range map[string]string{"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10",
		"kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000",
		"kernel/keys/root_maxbytes": "25000000"} {
		file := filepath.Join(root, "run/sysctl", strings.ReplaceAll(name, "/", "."))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join(root, "proc/sys", name), "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// configureNetwork configures the node's end of its pair of interfaces.
func (n nodeConfig) configureNetwork() error {
	if err := setSysctls(map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}); err != nil {
		return err
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("interface eth0: %w", err)
	}
	if err := addAddresses(link, n.IPs[0]+"/16", n.IPs[1]+"/64"); err != nil {
		return err
	}
	if err := addRoute(link, "0.0.0.0/0", machineIPv4); err != nil {
		return err
	}
	return addRoute(link, "::/0", machineIPv6)
}

// containerdSocket is where containerd listens, on every node.
const containerdSocket = "/run/containerd/containerd.sock"

// supervise runs containerd and kubelet, and waits for every process that has no other parent. It returns when one of
// the two ends.
func (n nodeConfig) supervise() error {
	if err := os.Setenv("PATH", n.Path); err != nil {
		return err
	}
	names := map[int]string{}
	for _, p := range []struct {
		name string
		args []string
	}{
		{"containerd", []string{"--config", filepath.Join(n.Dir, "containerd.toml")}},
		{"kubelet", []string{"--config", filepath.Join(n.Dir, "kubelet.yaml"), "--hostname-override", n.Name,
			"--node-ip", strings.Join(n.IPs, ","), "--kubeconfig", filepath.Join(n.Dir, "../../kubeconfig-inside")}},
	} {
		pid, err := n.run(p.name, p.args)
		if err != nil {
			return err
		}
		names[pid] = p.name
		if p.name != "containerd" {
			continue
		}
		// kubelet exits if containerd does not answer.
		if err := poll(context.Background(), "containerd listens", func() (bool, error) {
			c, err := net.Dial("unix", containerdSocket)
			if err != nil {
				return false, err
			}
			return true, c.Close()
		}); err != nil {
			return err
		}
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for processes: %w", err)
		case names[pid] != "":
			return fmt.Errorf("%s ended: exit status %d, signal %d", names[pid], status.ExitStatus(), status.Signal())
		}
	}
}

// run starts a program that writes to a log of its own, and returns its process ID.
func (n nodeConfig) run(name string, args []string) (int, error) {
	log, err := os.OpenFile(filepath.Join(n.Dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd.Process.Pid, nil
}
