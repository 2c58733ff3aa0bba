// Command kube-proxy is a drop-in replacement for Kubernetes' own kube-proxy, with its flags, configuration file, ports
// and metrics. The implementation is package dropin, the flags are package dropin/command, for programs that embed a
// kube-proxy. As an example of a complete program on this library, read dropin/run.go first.
//
// "kube-proxy preflight" lists what would change for the services of a cluster: package cmd/internal/preflight.
// README.md says how to run the program, and which features are missing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/cmd/internal/preflight"
	"sigs.k8s.io/kube-proxy-lib/dropin/command"
)

func main() {
	// The rules remain when the program exits, so that a restart does not interrupt traffic.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if len(os.Args) > 1 && os.Args[1] == "preflight" { // kube-proxy has no arguments without dashes
		os.Exit(preflight.Main(ctx, os.Args[2:]))
	}
	err := run(ctx, os.Args[1:])
	klog.Flush()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kube-proxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	c, err := command.Parse(args, os.Stdout)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
