// Command print-state prints what a node must do with service traffic, from the cluster that a kubeconfig names or
// from files of Kubernetes objects:
//
//	print-state --file DIR --node-name NODE --once -o json
//	print-state --kubeconfig FILE --node-name NODE
//
// Without --once it goes on, and prints the state again whenever it changes. With --explain it says instead why each
// endpoint of a service is or is not used on the node:
//
//	print-state --file DIR --node-name NODE --explain NAMESPACE/NAME
//
// With --flow it says what happens to a packet, by which rules of docs/semantics.md, and which endpoints it may reach.
// The packet may come from a pod, by address or by name, from the node, or from outside:
//
//	print-state --file DIR --node-name NODE --flow 'pod 10.244.1.5 -> 10.96.0.10:53/UDP'
//	print-state --url http://127.0.0.1:10249/page/ --flow 'outside 203.0.113.7 -> 192.0.2.1:30080'
//
// The second form asks a running proxy that serves package page. --explain can do so, too.
//
// The state can also come from a brain (package remote, examples/brain). With --once it then prints, on standard error,
// the flags that show later what has changed since:
//
//	print-state --server unix:///run/kube-proxy-lib/brain.sock --node-name NODE --once
//	print-state --server unix:///run/kube-proxy-lib/brain.sock --node-name NODE --once --instance-id ID --rev 7
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "print-state:", err)
		os.Exit(1)
	}
}

const usage = `Prints what a node does with Services, and why.

Usage:
  print-state SOURCE [flags]

SOURCE is --file, --kubeconfig or --server; for --explain and --flow also --url, a running proxy.

Examples:
  # What a node does with all services
  print-state --kubeconfig FILE --node-name NODE --once

  # Why is an endpoint not used?
  print-state --kubeconfig FILE --node-name NODE --explain NAMESPACE/NAME

  # Where does a packet go? As the proxy of this node has applied it, if it runs with --page
  print-state --url http://127.0.0.1:10249/page/ --flow 'pod 10.1.1.5 -> 10.96.0.10:53/UDP'

  # The same from objects in files: kubectl get services,endpointslices,nodes,servicecidrs -A -o yaml
  print-state --file DIR --node-name NODE --cluster-cidr 10.244.0.0/16 --flow 'node -> 10.96.0.10:53/UDP'

Flags:
`

// run is the program. It writes remarks to notes.
func run(ctx context.Context, args []string, out, notes io.Writer) error {
	set := flag.NewFlagSet("print-state", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	var from source.Flags
	from.Register(set, "")
	var server serverFlags
	server.register(set)
	once := set.Bool("once", false, "print the state once everything has been read, and exit")
	timeout := set.Duration("timeout", 30*time.Second,
		"how long --once, --explain and --flow wait for the state; 0: forever")
	format := set.String("o", "text", "output `format`: text, json or yaml")
	var flow flowFlags
	flow.register(set)
	explain := set.String("explain", "",
		"`namespace/name` of a service: explain why each of its endpoints is or is not used, and exit")
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		set.SetOutput(out)
		set.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; see print-state --help", err)
	case set.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see print-state --help", set.Arg(0))
	case !from.Given() && !server.Given() && flow.url == "":
		return errors.New("one of --file, --kubeconfig, --server and --url is required; see print-state --help")
	}
	print, err := printer(*format)
	if err != nil {
		return err
	}
	if err := flow.parse(); err != nil {
		return err
	}
	if flow.asked() && *explain != "" {
		return errors.New("--flow cannot be used with --explain")
	}
	service, err := parseService(*explain)
	if err != nil {
		return err
	}
	if flow.url != "" && (from.Given() || server.Given()) {
		return errors.New("--url cannot be used with --file, --kubeconfig or --server")
	}
	if flow.url != "" && !flow.asked() && *explain == "" {
		return errors.New("--url is for --flow and --explain")
	}
	if *timeout > 0 && (*once || *explain != "" || flow.asked()) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *timeout,
			fmt.Errorf("no state after %v: check that the API server, the brain or the file exists", *timeout))
		defer cancel()
	}
	if flow.url != "" {
		if *explain != "" {
			return flow.explainOfProxy(ctx, service, print, out)
		}
		return flow.askProxy(ctx, print, out)
	}
	if flow.detectsNothing() {
		fmt.Fprintln(notes, "Note: without --detect-local-mode or --cluster-cidr it is unknown which clients are pods of the "+
			"node. What follows is right for a proxy that does not know either: it never masquerades traffic to cluster IPs.")
	}
	state := localstate.Options{NodeName: from.NodeName, DetectLocal: flow.detect}
	if server.Given() {
		if from.Given() || *explain != "" {
			return errors.New("--server cannot be used with --file, --kubeconfig or --explain")
		}
		return printRemote(ctx, server, state, *once || flow.asked(), flow.printer(print), out, notes)
	}
	if err := server.Check(); err != nil {
		return err
	}
	from.Details = flow.asked()
	src, err := from.Source()
	if err != nil {
		return err
	}
	feed := &kubeproxy.LocalFeed{Source: src, State: state,
		Cluster: localstate.ClusterOptions{EndpointDetails: from.Details}}
	if *explain != "" {
		return printStates(ctx, feed, true, func(out io.Writer, _ *sink.Snapshot) error {
			e, ok := feed.Explain(service)
			if !ok {
				return fmt.Errorf("unknown service %s: check the name against kubectl get services -A", *explain)
			}
			return print(out, e)
		}, out)
	}
	return printStates(ctx, feed, *once || flow.asked(), flow.printer(print), out)
}

// parseService returns the name of a service that is written namespace/name, or no name for "".
func parseService(text string) (model.ServiceName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if text != "" && (!ok || namespace == "" || name == "") {
		return model.ServiceName{}, fmt.Errorf("--explain %q is not namespace/name", text)
	}
	return model.ServiceName{Namespace: namespace, Name: name}, nil
}

// printStates prints the state whenever it changes, or once.
func printStates(ctx context.Context, feed kubeproxy.Feed, once bool, print snapshotPrinter, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failed error
	printed := false
	proxy := health.New(0)
	printing := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		if once && proxy.NodeMissing() { // otherwise the log says it, and the Node may come
			failed = errors.New("there is no Node of this name: check --node-name against kubectl get nodes")
		} else {
			failed = print(out, s)
		}
		if failed != nil || once {
			cancel(nil)
		}
		printed = true
		return nil
	})
	err := kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: printing, ResyncInterval: -1, Health: proxy})
	if cause := context.Cause(ctx); once && !printed && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, failed)
}

// printRemote prints the state from a brain.
func printRemote(ctx context.Context, server serverFlags, state localstate.Options, once bool, print snapshotPrinter,
	out, notes io.Writer) error {
	opts, err := server.options(state)
	if err != nil {
		return err
	}
	feed, err := remote.NewFeed(opts)
	if err != nil {
		return err
	}
	if err := printStates(ctx, feed, once, print, out); err != nil {
		return err
	}
	if at := feed.Position(); once && at.InstanceID != "" {
		_, err = fmt.Fprintf(notes, "to see later changes: --instance-id %s --rev %d\n", at.InstanceID,
			at.Revision)
	}
	return err
}
