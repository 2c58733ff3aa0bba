// Command kube-proxy is a drop-in replacement for Kubernetes' own kube-proxy, with its flags, its configuration file,
// its ports and its metrics. All of it is in package dropin, and its flags in package dropin/command, for programs that
// have a kube-proxy inside. As an example of a complete program on this library, read dropin/run.go first.
//
// "kube-proxy preflight" lists what would be different for the services of a cluster: package
// examples/internal/preflight. README.md says how to run it, and which features are missing.
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

	"sigs.k8s.io/kube-proxy-lib/dropin/command"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/preflight"
)

func main() {
	// The rules stay when the program ends: a restart is no reason to interrupt traffic.
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
