// Package preflight lists the traffic that would be treated differently if nodes moved from one service proxy to
// another: from kube-proxy to the drop-in of this library, from mode iptables or ipvs to nftables, or to another
// configuration. It is "kube-proxy preflight" and the program of examples/preflight.
//
// It asks package oracle what happens to a new connection from a pod of the node, the node itself, a pod of another node
// and a client outside to each address of each service, for both configurations, and prints each answer that differs,
// with its rule in docs/semantics.md. It also names the objects that kube-proxy treats differently whatever the
// configuration, such as those that are malformed, and services that ask for an address of another one: each departure
// in docs/departures.md that an object can show. It changes nothing, neither on the node nor in the cluster. What is
// different for all services alike, whatever they are, is in docs/departures.md only.
package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/examples/internal/source"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Main runs the program with a command line, without the name of the program, and returns its exit code.
func Main(ctx context.Context, args []string) int {
	n, err := run(ctx, args, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "preflight:", err)
		return 2
	case n > 0:
		return 1
	}
	return 0
}

const usage = `Lists the traffic that would be treated differently after a move to this kube-proxy, or to another mode.

Usage:
  kube-proxy preflight [flags]

Examples:
  # What changes for the services of a cluster that kubeadm made, if this kube-proxy serves them in mode nftables?
  kube-proxy preflight --from daemonset --to nftables --kubeconfig FILE --all-nodes

  # The same, for one node and as JSON, with the configuration that the new DaemonSet will have
  kube-proxy preflight --from daemonset --to new.yaml --kubeconfig FILE --node-name NODE -o json

  # From the flags of another kube-proxy, with objects in files
  kube-proxy preflight --from "--proxy-mode=ipvs --masquerade-all" --file DIR --node-name NODE

  # On the node: does anybody use node ports on 127.0.0.1?
  kube-proxy preflight --kubeconfig FILE --node-name NODE --connections

The exit code is 0 if there is no difference, 1 if there is one, and 2 after an error.

Flags:
`

// options are what the flags say.
type options struct {
	objects     source.Flags
	from, to    string
	same, all   bool
	hosts       string
	addresses   []netip.Addr // of hosts
	connections bool
	timeout     time.Duration
	format      string
}

func parse(args []string, out io.Writer) (*options, error) {
	set := flag.NewFlagSet("preflight", flag.ContinueOnError)
	set.SetOutput(out)
	set.Usage = func() {
		fmt.Fprint(out, usage)
		set.PrintDefaults()
	}
	var o options
	o.objects.Register(set, "")
	set.StringVar(&o.from, "from", "iptables", "`proxy` to move from: a mode, with kube-proxy's defaults; a configuration "+
		"file; flags of kube-proxy; daemonset, for the arguments of DaemonSet kube-system/kube-proxy; or configmap, for "+
		"config.conf in ConfigMap kube-system/kube-proxy")
	set.StringVar(&o.to, "to", "nftables",
		"`proxy` to move to: like --from, but with the modes and flags of this program")
	set.BoolVar(&o.same, "same", false, "both proxies use this library: do not list what kube-proxy does differently")
	set.BoolVar(&o.all, "all-nodes", false, "compare for all nodes instead of --node-name")
	set.StringVar(&o.hosts, "host-addresses", "", "comma-separated `list` of the node's addresses, for its node ports "+
		"(default: those of its Node object)")
	set.BoolVar(&o.connections, "connections", false, "count the connections to node ports on loopback addresses that "+
		"this machine, the node, is tracking (Linux, root)")
	set.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for the cluster's objects")
	set.StringVar(&o.format, "o", "text", "output `format`: text or json")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case o.format != "text" && o.format != "json":
		return nil, fmt.Errorf("-o %q is neither text nor json", o.format)
	case o.all == (o.objects.NodeName != ""):
		return nil, errors.New("one of --node-name and --all-nodes is required")
	case o.all && (o.hosts != "" || o.connections):
		return nil, errors.New("--host-addresses and --connections are about one node: give --node-name")
	}
	for text := range strings.SplitSeq(o.hosts, ",") {
		if o.hosts == "" {
			break
		}
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--host-addresses: %w", err)
		}
		o.addresses = append(o.addresses, a)
	}
	return &o, nil
}

// run is the program. It returns the number of differences.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	o, err := parse(args, out)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout,
		fmt.Errorf("no complete list of the cluster's objects after %v: is the API server reachable?", o.timeout))
	defer cancel()
	before, err := configuration(ctx, o.from, o.objects.Kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("--from: %w", err)
	}
	after, err := configuration(ctx, o.to, o.objects.Kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("--to: %w", err)
	}
	src, err := o.objects.Source()
	if err != nil {
		return 0, err
	}
	cluster, err := collect(ctx, src, watch.AllNodes)
	if err != nil {
		return 0, err
	}
	list, err := o.compare(ctx, cluster, before, after)
	if err != nil {
		return 0, err
	}
	return len(list), o.print(out, list)
}

// compare compares the proxies on each node that is asked about.
func (o *options) compare(
	ctx context.Context, cluster replay, before, after *v1alpha2.KubeProxyConfiguration,
) ([]difference, error) {
	nodes := cluster.nodes()
	if !o.all {
		if err := known(nodes, o.objects.NodeName); err != nil {
			return nil, err
		}
		nodes = []string{o.objects.NodeName}
	} else if len(nodes) == 0 {
		return nil, errors.New("--all-nodes: there are no Nodes")
	}
	var flows map[connection]int
	if o.connections {
		var err error
		if flows, err = loopbackConnections(); err != nil {
			return nil, fmt.Errorf("--connections: %w", err)
		}
	}
	all := []difference{} // in JSON not null
	for _, node := range nodes {
		m := &move{node: node, addresses: o.addresses, objects: cluster.forNode(node), kubeProxy: !o.same, flows: flows}
		list, err := m.compare(ctx, before, after)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node, err)
		}
		all = merge(all, list, node)
	}
	return all, nil
}

func (o *options) print(out io.Writer, list []difference) error {
	if o.format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	for _, d := range list {
		if o.all {
			fmt.Fprintf(out, "%v, on %s\n", d, d.where())
		} else {
			fmt.Fprintln(out, d)
		}
	}
	if len(list) == 0 {
		name := o.objects.NodeName
		if o.all {
			name = "any node"
		}
		fmt.Fprintf(out, "no differences for %s\n", name)
	}
	return nil
}
