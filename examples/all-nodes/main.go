// Command all-nodes computes the load balancers of every node of a cluster in one process, with one watch, as programs
// do that write them to one database for all nodes, such as OVN's northbound database:
//
//	all-nodes --file DIR
//	all-nodes --kubeconfig FILE
//
// It prints each load balancer that is new or different: first those that all nodes of a zone share, then those of
// single nodes, whose traffic goes elsewhere because of a traffic policy or a hint. cluster.go has all that matters.
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

	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "all-nodes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	set := flag.NewFlagSet("all-nodes", flag.ContinueOnError)
	var from source.Cluster
	from.Register(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	src, err := from.Source()
	if err != nil {
		return err
	}
	base, err := localstate.New(ctx, localstate.Options{}, localstate.ClusterOptions{})
	if err != nil {
		return err
	}
	c := &cluster{base: base, nodes: map[string]*localstate.NodeTracker{}, classes: map[localstate.Class]*class{},
		classOf: map[string]*class{}, written: map[string]map[model.ServiceName]string{},
		write: func(where string, service model.ServiceName, rules string) {
			if rules == "" {
				rules = " has none (any more)"
			}
			fmt.Fprintf(out, "%s: %v%s\n", where, service, rules)
		}}
	return src.Run(ctx, watch.AllNodes, c)
}
