// Command mock is the example to read first: a service proxy whose dataplane is a table that it prints.
//
//	mock                                       plays a script of changes to a small cluster; no cluster is needed
//	mock --once                                prints the routing table of that cluster, and ends
//	mock --file DIR --node-name NODE           takes Kubernetes objects from files, and follows them
//	mock --kubeconfig FILE --node-name NODE    takes them from an API server
//
// Start with backend.go, the backend. Everything else is about showing what it does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
	"sigs.k8s.io/kube-proxy-lib/localstate"
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
	once := set.Bool("once", false, "print the routing table as it is when everything has been listed, and end")
	pause := set.Duration("pause", 1500*time.Millisecond, "time between the steps of the script")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	src, play, err := choose(&from)
	if err != nil {
		return err
	}
	screen := &screen{backend: newBackend(io.Discard), out: &lockedWriter{w: out}, listed: make(chan struct{})}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-screen.listed:
		}
		if *once {
			cancel()
		} else if play != nil {
			play(ctx, screen, *pause)
			cancel()
		}
	}()
	return kubeproxy.Run(ctx, kubeproxy.Options{
		Source: src,
		Sink:   screen,
		State: localstate.Options{
			NodeName:    from.NodeName,
			DetectLocal: localstate.DetectLocal{NodeCIDR: from.NodeName != ""}, // tell local pods by the node's podCIDRs
		},
		MinInterval: -1, // show every change as it comes
	})
}

// choose returns the source that the flags name or, if they name none, the embedded cluster and what plays its script.
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
