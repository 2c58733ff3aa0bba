// Command preflight lists the traffic that would be treated differently if a node moved from one service proxy to
// another, or to another mode. It is kube-proxy preflight of examples/kube-proxy, for those who have only the sources;
// package examples/internal/preflight says what it does, and --help how to call it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/examples/internal/preflight"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	os.Exit(preflight.Main(ctx, os.Args[1:]))
}
