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
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// host is a node with an API server on its loopback interface.
type host struct {
	objects
	folder  string // for the proxy and its input files
	values  map[string]string
	o       *options
	all     members    // what runs on the node
	mu      sync.Mutex // for process and spent
	process *process   // nil if it does not run
	// spent is the processor time, since the last start, of commands that have ended, and of the program if it has.
	spent   time.Duration
	logFile *os.File
	lister  listing
}

// serverPort is the API server's usual port.
const serverPort = 6443

// open implements Proxy.Open.
func (o *options) open(ctx context.Context, env program.Node,
	c program.Configuration) (program.Host, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", serverPort))
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	h := &host{o: o, all: membersOf(0)}
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
		// Opened for appending, so that other writers, such as /dev/stderr, do not overwrite each other.
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
	h.values = map[string]string{"kubeconfig": kubeconfig, "server": url, "node": program.NodeName,
		"flags": kubeProxyFlags(c), "nodeIPs": join(env.NodeIPs), "bridge": program.BridgeName,
		"serviceCIDRs": join(env.ServiceCIDRs()), "dir": h.folder,
		"podCIDRs": join(env.PodCIDRs()), "clusterCIDRs": join(env.ClusterCIDRs())}
	return h, nil
}

// Start implements [program.Host].
func (h *host) Start(context.Context) error {
	command, err := replace(h.o.proxy, h.values)
	if err != nil {
		return err
	}
	fmt.Fprintf(h.logFile, "--- %s: %s\n", time.Now().Format(time.TimeOnly), command)
	p, err := start(h.shell(context.Background(), command), h.logFile)
	if err == nil {
		h.mu.Lock()
		h.process, h.spent = p, 0
		h.mu.Unlock()
	}
	return err
}

// shell returns a shell command on the node. Each node has its own iptables lock: otherwise the nodes, and the machine
// itself, would wait for each other. The command has its own mount namespace.
func (h *host) shell(ctx context.Context, command string) *exec.Cmd {
	const wrap = `: >>"$1"; : >>/run/xtables.lock && mount --bind "$1" /run/xtables.lock; exec sh -c "$2"`
	cmd := exec.CommandContext(ctx, "sh", "-c", wrap, "judge", filepath.Join(h.folder, "xtables.lock"), command)
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Ended implements [program.Host].
func (h *host) Ended() <-chan struct{} {
	if h.process == nil {
		return nil
	}
	return h.process.ended
}

// Failure implements [program.Host].
func (h *host) Failure() error {
	return &exitError{fmt.Sprintf("the program has ended by itself: %v", h.process.err), tail(h.logFile.Name(), 0)}
}

// exitError says how the program exited, with the end of its log.
type exitError struct{ text, log string }

func (e *exitError) Error() string { return e.text }

// Log returns the end of the program's output.
func (e *exitError) Log() string { return e.log }

// Stop implements [program.Host].
func (h *host) Stop(context.Context) error {
	h.mu.Lock()
	p := h.process
	h.mu.Unlock()
	if p == nil {
		return nil
	}
	used, _ := p.usage() // of daemons as well, for which no shell waits
	killed := p.stop()
	h.mu.Lock()
	h.process = nil // not before: its time counts until it has ended
	h.spent += max(used, timeOf(p.cmd))
	h.mu.Unlock()
	if killed {
		fmt.Fprintln(h.logFile, "--- killed: it did not end within 10 s of SIGTERM")
	}
	return nil
}

// Cleanup implements [program.Host].
func (h *host) Cleanup(ctx context.Context) error { return h.run(ctx, h.o.cleanup) }

// Break implements [program.Host].
func (h *host) Break(ctx context.Context) error { return h.run(ctx, h.o.breaks) }

// run runs a command on the node until it exits.
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
	err = cmd.Run()
	h.mu.Lock()
	h.spent += timeOf(cmd)
	h.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, indent(tail(h.logFile.Name(), info.Size())))
	}
	return nil
}

// Away is an optional method of [program.Host]. A real API server does not go away.
func (h *host) Away(context.Context) error {
	if p, ok := h.objects.(*inProcess); ok {
		return p.away()
	}
	return errors.ErrUnsupported
}

// Back is an optional method of [program.Host].
func (h *host) Back(ctx context.Context, r program.Return) error {
	if p, ok := h.objects.(*inProcess); ok {
		return p.back(ctx, r)
	}
	return errors.ErrUnsupported
}

// Dump implements [program.Host].
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

// Usage implements [program.Host].
func (h *host) Usage() (processor time.Duration, memory int64) {
	h.mu.Lock()
	p, spent := h.process, h.spent
	h.mu.Unlock()
	if p == nil {
		return spent + h.all.time(), 0 // a clean-up may run
	}
	processor, memory = p.usage()
	return spent + processor, memory
}

// Close implements [program.Host].
func (h *host) Close() {
	_ = h.Stop(context.Background())
	h.all.end() // what a command left running
	h.objects.close()
	_ = h.logFile.Close()
	_ = os.RemoveAll(h.folder)
}

// indent indents a text below a heading.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
