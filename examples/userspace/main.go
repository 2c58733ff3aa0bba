// Command userspace proxies the services of a cluster in user space, without a packet filter:
//
//	userspace --kubeconfig FILE --listen localhost
//
// serves each port of a cluster IP on a port of 127.0.0.1 or ::1, so that all services of a cluster are available on a
// laptop. It prints the table of these ports whenever it changes. The endpoints themselves have to be reachable,
// through a VPN or from within a local cluster's network. With
//
//	ip netns exec NAME userspace --kubeconfig FILE --node-name NODE --listen anyip
//
// it serves the service addresses themselves, in its network namespace (Linux, CAP_NET_ADMIN). They stay local until it
// is run with --cleanup. --listen given serves only addresses that the host already has. With --keep-source endpoints
// see clients' addresses where Kubernetes requires that; first run the script keep-source, next to this file, in the
// same namespace.
//
// It takes over listening sockets from systemd (LISTEN_FDS), so that no connection is refused during a restart. On
// SIGTERM it stops accepting connections, and ends with its last connection, or after --drain.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
	"sigs.k8s.io/kube-proxy-lib/localstate"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "userspace:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	set := flag.NewFlagSet("userspace", flag.ContinueOnError)
	var from source.Flags
	from.Register(set, "")
	listen := set.String("listen", "localhost", "`where` to serve services: localhost, anyip or given")
	keepSource := set.Bool("keep-source", false, "connect to endpoints from the client's address")
	drain := set.Duration("drain", 30*time.Second, "`time` that connections may continue after SIGTERM")
	cleanup := set.Bool("cleanup", false, "undo what --listen anyip has done, and exit")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	options := userspace.Options{Sockets: inherited(), KeepSource: *keepSource}
	switch *listen {
	case "localhost":
		if *keepSource {
			return errors.New("--keep-source: not with --listen localhost, where clients have the address 127.0.0.1 or ::1")
		}
		options.Addresses, options.LocalhostNodePorts = userspace.Localhost{}, true
	case "given":
	case "anyip":
		apiServer, err := from.APIServer(ctx)
		if err != nil {
			return err
		}
		anyIP, err := userspace.NewAnyIP(apiServer...)
		if err != nil {
			return err
		}
		defer anyIP.Close()
		options.Addresses = anyIP
	default:
		return fmt.Errorf("--listen %q: must be localhost, anyip or given", *listen)
	}
	backend, err := userspace.New(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	if *cleanup {
		return backend.CleanUp(ctx)
	}
	src, err := from.Source()
	if err != nil {
		return err
	}
	err = kubeproxy.Run(ctx, kubeproxy.Options{
		Feed: &kubeproxy.LocalFeed{Source: src, State: localstate.Options{
			NodeName:    from.NodeName,
			DetectLocal: localstate.DetectLocal{NodeCIDR: from.NodeName != ""},
		}},
		Sink: &printer{Backend: backend, out: out},
	})
	wait, cancel := context.WithTimeout(context.Background(), *drain)
	defer cancel()
	_ = backend.Drain(wait) // connections that last longer are reset
	return err
}

// inherited returns the sockets passed by systemd, see sd_listen_fds(3).
func inherited() []*os.File {
	const first = 3
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if pid := os.Getenv("LISTEN_PID"); err != nil || pid != strconv.Itoa(os.Getpid()) {
		return nil
	}
	var files []*os.File
	for i := range n {
		files = append(files, os.NewFile(uintptr(first+i), fmt.Sprintf("LISTEN_FDS %d", i)))
	}
	return files
}

// printer prints the table of ports after each Sync that has changed it.
type printer struct {
	*userspace.Backend
	out  io.Writer
	last string
}

// Sync implements sink.Sink.
func (p *printer) Sync(ctx context.Context) error {
	err := p.Backend.Sync(ctx)
	if text := table(p.Listeners()); text != p.last {
		p.last = text
		fmt.Fprintln(p.out, text)
	}
	return err
}

// table returns a line for each listener.
func table(list []userspace.Listener) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE PORT\tADDRESS\tLISTENS ON")
	for _, l := range list {
		address := l.Frontend.Key.String()
		if l.Frontend.Kind == frontend.NodePort {
			address = "node port " + address
		}
		fmt.Fprintf(w, "%v\t%s\t%v\n", l.Port, address, l.Addr)
	}
	_ = w.Flush()
	return b.String()
}
