// Command preflight lists the traffic that would be treated differently if a node moved from one service proxy to
// another: from kube-proxy to the drop-in of this library, from mode iptables or ipvs to nftables, or to another
// configuration:
//
//	preflight --from iptables --to nftables --kubeconfig FILE --node-name NODE
//	preflight --from configmap --to new.yaml --kubeconfig FILE --node-name NODE -o json
//	preflight --from old.yaml --to nftables --file DIR --node-name NODE
//
// --from is kube-proxy's configuration, --to that of the drop-in: the name of a mode, which has kube-proxy's defaults, a
// configuration file of any version, or "configmap", which is what kubeadm's DaemonSet runs with: the key config.conf of
// the ConfigMap kube-system/kube-proxy. With --same both are the drop-in's, and only the configurations are compared.
//
// It asks package oracle what happens to a new connection from a pod of the node, the node itself, a pod of another node
// and a client outside to each address of each service, for both configurations, and prints each answer that differs,
// with its rule in docs/semantics.md. It also names the objects that kube-proxy treats differently whatever the
// configuration: those that are malformed, and services that ask for an address of another one. It changes nothing,
// neither on the node nor in the cluster. Ask for one node of each kind: the answers depend on the node's addresses and
// pods. What is different for all services alike, whatever they are, is in docs/departures.md only.
//
// The exit code is 0 if there is no difference, 1 if there is one, and 2 after an error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	n, err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "preflight:", err)
		os.Exit(2)
	case n > 0:
		os.Exit(1)
	}
}

// run is the program. It returns the number of differences.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	set := flag.NewFlagSet("preflight", flag.ContinueOnError)
	var objects source.Flags
	objects.Register(set, "")
	from := set.String("from", "iptables", "`proxy` to move from: a mode, a configuration file, or configmap")
	to := set.String("to", "nftables", "`proxy` to move to: a mode, or a configuration file")
	same := set.Bool("same", false, "both are of this library: do not list what kube-proxy does differently")
	hosts := set.String("host-addresses", "", "`list` of the node's addresses with commas, for its node ports "+
		"(default: those of its Node object)")
	timeout := set.Duration("timeout", 30*time.Second, "how long to wait for the cluster's objects")
	format := set.String("o", "text", "output `format`: text or json")
	if err := set.Parse(args); err != nil {
		return 0, err
	}
	switch {
	case set.NArg() > 0:
		return 0, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case *format != "text" && *format != "json":
		return 0, fmt.Errorf("-o %q is neither text nor json", *format)
	case objects.NodeName == "":
		return 0, errors.New("--node-name is required")
	}
	var addresses []netip.Addr
	for text := range strings.SplitSeq(*hosts, ",") {
		if *hosts == "" {
			break
		}
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return 0, fmt.Errorf("--host-addresses: %w", err)
		}
		addresses = append(addresses, a)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout,
		fmt.Errorf("no complete list of the cluster's objects after %v: is the API server reachable?", *timeout))
	defer cancel()
	before, err := configuration(ctx, *from, objects.Kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("--from: %w", err)
	}
	after, err := configuration(ctx, *to, objects.Kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("--to: %w", err)
	}
	src, err := objects.Source()
	if err != nil {
		return 0, err
	}
	cluster, err := collect(ctx, src, objects.NodeName)
	if err != nil {
		return 0, err
	}
	move := &move{node: objects.NodeName, addresses: addresses, objects: cluster, kubeProxy: !*same}
	list, err := move.compare(ctx, before, after)
	if err != nil {
		return 0, err
	}
	if *format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return len(list), e.Encode(list)
	}
	for _, d := range list {
		if _, err := fmt.Fprintln(out, d); err != nil {
			return 0, err
		}
	}
	if len(list) == 0 {
		_, err = fmt.Fprintf(out, "no differences for %s\n", objects.NodeName)
	}
	return len(list), err
}
