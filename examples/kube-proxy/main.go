// Command kube-proxy is a drop-in replacement for Kubernetes' own kube-proxy, with its flags, its configuration file,
// its ports and its metrics. It is also an example of a complete program on this library:
//
//   - flags.go, flagvalues.go and settings.go: from flags and a file to one checked configuration
//   - modes.go: the backends
//   - run.go: everything wired up; read this one first
//   - node.go: what has to be known about the node at startup
//   - brain.go: the state from a brain, package remote, instead of an API server
//   - serve.go, events.go, client.go: HTTP servers, Events, the API server
//   - machine.go: what tests replace
//
// README.md says how to run it, and which features are missing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

func main() {
	// The rules stay when the program ends: a restart is no reason to interrupt traffic.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := run(ctx, os.Args[1:], theMachine())
	klog.Flush()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kube-proxy:", err)
		os.Exit(1)
	}
}
