// Command all-nodes computes the load balancers of every node of a cluster in one process, with one watch, like
// programs that write all nodes' load balancers to one database, such as OVN's northbound database:
//
//	all-nodes --file DIR
//	all-nodes --kubeconfig FILE
//
// It prints each new or changed load balancer: first those shared by all nodes of a zone, then those of single nodes
// whose traffic differs because of a traffic policy or a hint; and the zone and addresses of each node. cluster.go has
// the essential code, and loadbalancer.go turns the result into rows.
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

	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
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

// printer is the database of this example.
type printer struct{ io.Writer }

func (p printer) write(where string, service model.ServiceName, b *balancers) {
	text := b.String()
	if b == nil {
		text = " has none (any more)"
	}
	fmt.Fprintf(p, "%s: %v%s\n", where, service, text)
}

func (p printer) join(node, group string, variables map[string]string) {
	if group == "" {
		group = "no group"
	}
	fmt.Fprintf(p, "%s is in %s: %v\n", node, group, variables)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	set := flag.NewFlagSet("all-nodes", flag.ContinueOnError)
	var from source.Cluster
	from.Details = true
	from.Register(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	src, err := from.Source()
	if err != nil {
		return err
	}
	c, err := newCluster(ctx, printer{out})
	if err != nil {
		return err
	}
	return src.Run(ctx, watch.AllNodes, c)
}
