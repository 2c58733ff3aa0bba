// Command mock is the example to read first: a service proxy whose dataplane is a table that it prints.
//
//	mock                                       plays a script of changes to a small cluster; no cluster is needed
//	mock --page                                plays it over and over, and shows it in a browser
//	mock --once                                prints the routing table of that cluster, and ends
//	mock --file DIR --node-name NODE           takes Kubernetes objects from files, and follows them
//	mock --kubeconfig FILE --node-name NODE    takes them from an API server
//
// Start with backend.go, the backend. The other files only show what it does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/page"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mock:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	set := flag.NewFlagSet("mock", flag.ContinueOnError)
	var from source.Flags
	from.Register(set, "node-1")
	once := set.Bool("once", false, "print the routing table once everything is listed, and exit")
	showPage := set.Bool("page", false,
		"serve a page that shows what the proxy does, and play the script until interrupted")
	address := set.String("page-address", "127.0.0.1:10249",
		"`address` of the page; anyone who can reach it can read it, so other addresses than loopback need --page-public")
	public := set.Bool("page-public", false, "allow a --page-address that other machines can reach")
	pause := set.Duration("pause", 1500*time.Millisecond, "time between the steps of the script")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}

	if *once && *showPage {
		return errors.New("--once and --page are mutually exclusive")
	}
	if err := checkAddress(*address); *showPage && !*public && err != nil {
		return fmt.Errorf("--page-address %s: %w", *address, err)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	src, play, err := choose(&from)
	if err != nil {
		return err
	}
	screen := &screen{backend: newBackend(io.Discard), out: &lockedWriter{w: out}, listed: make(chan struct{})}
	feed := &kubeproxy.LocalFeed{Source: src, State: localstate.Options{
		NodeName: from.NodeName,
		// detect local pods by the node's podCIDRs
		DetectLocal: localstate.DetectLocal{NodeCIDR: from.NodeName != ""},
	}}
	opts := kubeproxy.Options{
		Feed:        feed,
		Sink:        screen,
		MinInterval: -1, // show every change at once
	}
	if from.Given() && !*once {
		fmt.Fprintf(screen.out, "Nothing is shown before everything is listed and the Node %q has podCIDRs, by which "+
			"the example tells local pods.\nIn a cluster without podCIDRs it gives up after 5 minutes.\n\n", from.NodeName)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if *showPage {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *address)
		if err != nil {
			return fmt.Errorf("--page: %w; choose another address with --page-address", err)
		}
		fmt.Fprintf(screen.out, "The page is at http://%v/\n\n", listener.Addr())
		opts.Health = health.New(0)
		p := page.New(page.Options{Health: opts.Health})
		opts.Sink = p.Sink(&described{screen})
		feed.Cluster.EndpointDetails = true // pod names
		p.SetExplainer(feed)
		wg.Go(func() {
			if err := servePage(ctx, p, listener); err != nil {
				fmt.Fprintln(screen.out, err)
				cancel()
			}
		})
		wg.Go(func() {
			for play != nil && wait(ctx, screen.listed) {
				play(ctx, screen, *pause)
			}
		})
		return kubeproxy.Run(ctx, opts)
	}
	wg.Go(func() {
		if wait(ctx, screen.listed) && (play != nil || *once) {
			if !*once {
				play(ctx, screen, *pause)
			}
			cancel()
		}
	})
	return kubeproxy.Run(ctx, opts)
}

// checkAddress returns an error for an address that is malformed or reachable from other machines.
func checkAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
		return errors.New("other machines may reach this address, and everybody who does sees the whole cluster: take one " +
			"of 127.0.0.1 or ::1, or add --page-public")
	}
	return nil
}

// wait waits until the channel what is closed. It returns false if ctx ends before that.
func wait(ctx context.Context, what <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-what:
		return ctx.Err() == nil
	}
}

// choose returns the source that the flags name. Without flags it returns the embedded cluster and a function that runs
// its script.
func choose(from *source.Flags) (watch.Source, func(context.Context, *screen, time.Duration), error) {
	if from.Given() {
		src, err := from.Source()
		return src, nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, nil, err
	}
	return s.files, s.play, nil
}
