package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// host is one node, with an API server on its loopback interface.
type host struct {
	objects
	folder  string // for the proxy, and the files that it is given
	values  map[string]string
	o       *options
	process *process // nil: none
	logFile *os.File
}

// serverPort is the port of the API server, as usual.
const serverPort = 6443

// open implements Proxy.Open.
func (o *options) open(ctx context.Context, env conformance.Env, c conformance.Configuration) (conformance.Host, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", serverPort))
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	h := &host{o: o}
	if o.cluster != nil {
		h.objects, err = o.cluster.open(env, listener)
	} else {
		h.objects, err = newInProcess(listener)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	number := o.opened.Add(1)
	h.folder = filepath.Join(o.report, "nodes", fmt.Sprint(number))
	if err = os.MkdirAll(h.folder, 0o755); err == nil {
		// Whoever else opens it for writing, as /dev/stderr, moves nobody's place in it.
		h.logFile, err = os.OpenFile(filepath.Join(o.report, fmt.Sprintf("proxy-%d.log", number)),
			os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o644)
	}
	kubeconfig := filepath.Join(h.folder, "kubeconfig")
	url, file := h.client()
	if err == nil {
		err = os.WriteFile(kubeconfig, file, 0o600)
	}
	if err != nil {
		h.objects.close()
		return nil, err
	}
	h.values = map[string]string{"kubeconfig": kubeconfig, "server": url, "node": conformance.NodeName,
		"flags": kubeProxyFlags(c), "nodeIPs": join(env.NodeIPs), "bridge": conformance.BridgeName,
		"serviceCIDRs": join(env.ServiceCIDRs()), "dir": h.folder,
		"podCIDRs": join(env.PodCIDRs()), "clusterCIDRs": join(env.ClusterCIDRs())}
	return h, nil
}

// Start implements [conformance.Host].
func (h *host) Start(context.Context) error {
	command, err := replace(h.o.proxy, h.values)
	if err != nil {
		return err
	}
	fmt.Fprintf(h.logFile, "--- %s: %s\n", time.Now().Format(time.TimeOnly), command)
	h.process, err = start(h.shell(context.Background(), command), h.logFile)
	return err
}

// shell returns a command for a shell on the node. Each node has its own lock of iptables: otherwise they, and the
// machine itself, would wait for each other. Mounts are those of the command alone.
func (h *host) shell(ctx context.Context, command string) *exec.Cmd {
	const wrap = `: >>"$1"; : >>/run/xtables.lock && mount --bind "$1" /run/xtables.lock; exec sh -c "$2"`
	cmd := exec.CommandContext(ctx, "sh", "-c", wrap, "judge", filepath.Join(h.folder, "xtables.lock"), command)
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Ended implements [conformance.Host].
func (h *host) Ended() <-chan struct{} {
	if h.process == nil {
		return nil
	}
	return h.process.ended
}

// Failure implements [conformance.Host].
func (h *host) Failure() error {
	return &exitError{fmt.Sprintf("the program has ended by itself: %v", h.process.err), tail(h.logFile.Name(), 0)}
}

// exitError says how the program ended, with the end of its log.
type exitError struct{ text, log string }

func (e *exitError) Error() string { return e.text }

// Log returns the end of what the program printed.
func (e *exitError) Log() string { return e.log }

// Stop implements [conformance.Host].
func (h *host) Stop(context.Context) error {
	if h.process == nil {
		return nil
	}
	p := h.process
	h.process = nil
	if p.stop() {
		fmt.Fprintln(h.logFile, "--- killed: it did not end within 10 s of SIGTERM")
	}
	return nil
}

// Cleanup implements [conformance.Host].
func (h *host) Cleanup(ctx context.Context) error { return h.run(ctx, h.o.cleanup) }

// Break implements [conformance.Host].
func (h *host) Break(ctx context.Context) error { return h.run(ctx, h.o.breaks) }

// run runs a command on the node until it ends.
func (h *host) run(ctx context.Context, command string) error {
	command, err := replace(command, h.values)
	if err != nil {
		return err
	}
	fmt.Fprintf(h.logFile, "--- %s: %s\n", time.Now().Format(time.TimeOnly), command)
	info, err := h.logFile.Stat()
	if err != nil {
		return err
	}
	cmd := h.shell(ctx, command)
	cmd.Stdout, cmd.Stderr = h.logFile, h.logFile
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, indent(tail(h.logFile.Name(), info.Size())))
	}
	return nil
}

// Dump implements [conformance.Host].
func (h *host) Dump(ctx context.Context) (string, error) {
	counters := regexp.MustCompile(`\[[0-9]+:[0-9]+\]|(?m:^#.*\n)`)
	var b strings.Builder
	show := func(path string, found bool, args ...string) {
		if !found {
			return
		}
		if out, err := exec.CommandContext(ctx, path, args...).Output(); err == nil {
			b.Write(counters.ReplaceAll(out, nil))
		}
	}
	for _, program := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		path, found := need.Find(program)
		show(path, found)
	}
	path, found := need.Find("nft")
	show(path, found, "--stateless", "list", "ruleset")
	path, found = need.Find("ipvsadm")
	show(path, found, "-S", "-n")
	return b.String(), nil
}

// Usage implements [conformance.Host].
func (h *host) Usage() (processor time.Duration, memory int64) {
	if h.process == nil {
		return 0, 0
	}
	return h.process.usage()
}

// Close implements [conformance.Host].
func (h *host) Close() {
	_ = h.Stop(context.Background())
	h.objects.close()
	_ = h.logFile.Close()
	_ = os.RemoveAll(h.folder)
}

// indent puts a text under a heading.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
