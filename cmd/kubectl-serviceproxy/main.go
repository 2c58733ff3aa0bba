// Command kubectl-serviceproxy is a plugin of kubectl that says what a node does with service traffic, and why. It only
// reads, and it does not matter which proxy the cluster runs:
//
//	kubectl serviceproxy explain shop/web --node n1
//	kubectl serviceproxy flow 'pod shop/cart-0 -> shop/web:443'
//	kubectl serviceproxy state --node n1
//	kubectl serviceproxy preflight --from daemonset --to nftables
//	kubectl serviceproxy rbac --user jane
//
// explain says why each endpoint of a service is used or not. flow prints the outcome of a packet, the rules of
// docs/semantics.md behind it, and the endpoints that it may reach. state prints all that the node does. preflight
// lists what would change with another proxy or mode, like kube-proxy preflight. rbac prints the permissions that these
// need.
//
// It has kubectl's flags for the cluster, the user and the namespace, and kubectl's defaults. Instead of a cluster it
// reads files with Kubernetes objects, a brain (package remote), or the page of a running proxy. README.md says how to
// install it, and the completion of names.
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

	"k8s.io/klog/v2"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	quiet()
	p := &program{out: os.Stdout, notes: os.Stderr}
	if err := p.run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, errDifferences) {
			fmt.Fprintln(os.Stderr, "Error:", err)
		}
		os.Exit(p.exitCode)
	}
}

// quiet makes the library log only warnings and errors: what else it logs is for proxies that run for long.
func quiet() {
	var set flag.FlagSet
	klog.InitFlags(&set)
	for name, value := range map[string]string{"logtostderr": "false", "alsologtostderr": "false",
		"stderrthreshold": "WARNING"} {
		if err := set.Set(name, value); err != nil {
			panic(err) // klog has no such flag: a mistake in this program
		}
	}
	klog.SetOutput(io.Discard) // of the rest, which would go to files
}
