package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Proxy ends the service proxy of all nodes, and starts another one on each, with a command for a shell. In it
// {kubeconfig} stands for the path of a kubeconfig with all rights, {node} for the node's name, {nodeIPs} for its two
// addresses, {podCIDRs} for those of its pods, {clusterCIDRs} for those of all pods, {machine} for the address of the
// machine outside, and {dir} for a folder of the node. An empty command starts none. Between the two proxies each node
// runs cleanup, unless that is empty: a proxy leaves its rules when it ends.
func (c *Cluster) Proxy(ctx context.Context, command, cleanup string) error {
	for i := range c.nodes {
		n := &c.nodes[i]
		if err := c.endProxy(ctx, n); err != nil {
			return fmt.Errorf("the proxy of node %s: %w", n.Name, err)
		}
		if cleanup != "" {
			if out, err := c.inside(ctx, n, "sh", "-c", n.replace(c, cleanup)).CombinedOutput(); err != nil {
				return fmt.Errorf("clean up node %s: %w: %s", n.Name, err, out)
			}
		}
		if command == "" {
			continue
		}
		if err := c.startProxy(ctx, n, command); err != nil {
			return fmt.Errorf("the proxy of node %s: %w", n.Name, err)
		}
	}
	return os.WriteFile(c.Options.file("proxy"), []byte(command), 0o644)
}

// pidFile has the process ID of the node's proxy, in the node's namespace, and that of its group.
func (c nodeConfig) pidFile() string { return filepath.Join(c.Dir, "proxy.pid") }

// replace replaces the placeholders in a command.
func (c nodeConfig) replace(of *Cluster, command string) string {
	return strings.NewReplacer("{kubeconfig}", of.Options.file("kubeconfig-inside"), "{node}", c.Name,
		"{nodeIPs}", strings.Join(c.IPs, ","), "{podCIDRs}", strings.Join(c.PodCIDRs, ","),
		"{clusterCIDRs}", clusterCIDRs, "{machine}", machineIPv4, "{dir}", filepath.Join(c.Dir, "proxy")).Replace(command)
}

// Beside runs a command for a shell on the machine that all nodes are connected to, as the API server does, until the
// context ends: for example a brain for the nodes' proxies. {kubeconfig} and {machine} are as for [Cluster.Proxy]. It
// returns at once; the result tells how the command ended, which it does when the context has. Programs are found as on
// the nodes.
func (c *Cluster) Beside(ctx context.Context, command string) (ended <-chan error, err error) {
	log, err := os.Create(c.Options.file("beside.log"))
	if err != nil {
		return nil, err
	}
	command = strings.NewReplacer("{kubeconfig}", c.Options.file("kubeconfig-inside"), "{machine}", machineIPv4).
		Replace(command)
	cmd := c.inside(ctx, nil, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "PATH="+c.nodes[0].Path) // of the nodes' programs
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	result := make(chan error, 1)
	go func() { result <- errors.Join(cmd.Wait(), log.Close()) }()
	return result, nil
}

func (c *Cluster) startProxy(ctx context.Context, n *nodeConfig, command string) error {
	if err := os.MkdirAll(filepath.Join(n.Dir, "proxy"), 0o755); err != nil {
		return err
	}
	// A process that enters the node's namespaces is not in its cgroups yet.
	script := fmt.Sprintf(`for file in %s; do [ ! -e "$file" ] || echo $$ >"$file"; done; echo $$ >%s; exec %s`,
		strings.Join(programGroups, " "), n.pidFile(), n.replace(c, command))
	// The first shell ends, and the node's first process becomes the parent of the proxy.
	out, err := c.inside(ctx, n, "sh", "-c", `setsid sh -c "$0" >>"$1" 2>&1 </dev/null &`, script,
		filepath.Join(n.Dir, "proxy.log")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("start: %w: %s", err, out)
	}
	return poll(ctx, "it starts", func() (bool, error) {
		info, err := os.Stat(n.pidFile())
		return err == nil && info.Size() > 0, err
	})
}

// endProxy ends the node's proxy, if it has one, and all processes that it has started.
func (c *Cluster) endProxy(ctx context.Context, n *nodeConfig) error {
	pid, err := os.ReadFile(n.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	group := "-" + strings.TrimSpace(string(pid))
	_ = c.inside(ctx, n, "kill", "-TERM", "--", group).Run() // it may have ended
	if err := poll(ctx, "it ends", func() (bool, error) {
		return c.inside(ctx, n, "kill", "-0", "--", group).Run() != nil, nil
	}); err != nil {
		return err
	}
	return os.Remove(n.pidFile())
}
