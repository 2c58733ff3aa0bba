// Package preflight lists traffic that nodes would treat differently after a change of the service proxy: from
// kube-proxy to this library's drop-in, from mode iptables or ipvs to nftables, or to another configuration. It
// implements "kube-proxy preflight" and "kubectl serviceproxy preflight".
//
// For both configurations it asks package oracle for the outcome of a new connection to each address of each service:
// from a pod of the node, the node itself, a pod of another node, and a client outside the cluster. It prints each
// outcome that differs, with its rule in docs/semantics.md. It also names objects that kube-proxy treats differently in
// every configuration: each departure in docs/departures.md that an object can show, such as malformed objects and
// services that claim another service's address. It changes nothing, neither on the node nor in the cluster.
// Departures that affect all services alike are only in docs/departures.md.
//
// It covers the services, addresses and IP families of both configurations. Where it does not know something, it says
// so: a node that cannot be compared, a dump without EndpointSlices or ServiceCIDRs, a Service without a cluster IP, a
// malformed document, or a variable in the arguments of a DaemonSet is an error, and of addresses that a Node object
// does not list it says what changes there. What a configuration says in vain is a warning.
package preflight

// Where things are:
//
//	configuration.go, daemonset.go, words.go  what is compared: a file, flags, or the command of a container
//	compare.go                                connections whose outcome differs; connections.go: tracked ones
//	senders.go, outcomes.go                   who connects in these; their rules and outcomes in words
//	replay.go                                 the source of the objects that both proxies get
//	upstream.go                               what kube-proxy's modes do otherwise than the rules say
//	departures.go, slices.go, refusals.go     what differs for a Service or a slice, whatever the connection is
//	difference.go, text.go                    a difference, and how it is printed
//	remedy.go                                 the flags that keep the earlier behaviour

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Main runs the program with these arguments (without the program's name), and returns its exit code.
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

  # The same, with the other addresses that nodes have
  kube-proxy preflight --from ipvs --kubeconfig FILE --all-nodes --host-addresses a=198.51.100.1,b=198.51.100.2

  # From the flags of another kube-proxy, with objects in files
  kube-proxy preflight --from "--proxy-mode=ipvs --masquerade-all" --file DIR --node-name NODE

  # On the node: does anybody use node ports on 127.0.0.1?
  kube-proxy preflight --kubeconfig FILE --node-name NODE --connections

The exit code is 0 if there is no difference, 1 if there is one, and 2 if something could not be read or compared.

Flags:
`

// Command is preflight as a command of a program: the values of its flags.
type Command struct {
	objects     source.Flags
	from, to    string
	same, all   bool
	hosts       string
	addresses   map[string][]netip.Addr // of hosts, by node; "" is every node
	connections bool
	timeout     time.Duration
	print       func(io.Writer, any) error // nil: text for people
	warn        io.Writer                  // for what the proxies ignore of their configurations
}

func parse(args []string, out io.Writer) (*Command, error) {
	set := flag.NewFlagSet("preflight", flag.ContinueOnError)
	set.SetOutput(out)
	set.Usage = func() {
		fmt.Fprint(out, usage)
		set.PrintDefaults()
	}
	o := Command{warn: os.Stderr}
	var format string
	o.objects.Register(set, "")
	o.Register(set)
	set.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for the cluster's objects")
	set.StringVar(&format, "o", "text", "output `format`: text or json")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case format == "json":
		o.print = printJSON
	case format != "text":
		return nil, fmt.Errorf("-o %q is neither text nor json", format)
	}
	return &o, o.check()
}

// Register adds the flags that are not about the source of the objects and the output.
func (o *Command) Register(set *flag.FlagSet) {
	set.StringVar(&o.from, "from", "iptables", "`proxy` to move from: a mode, with kube-proxy's defaults; a "+
		"configuration file; flags of kube-proxy; daemonset, for the arguments of DaemonSet kube-system/kube-proxy; or "+
		"configmap, for config.conf in ConfigMap kube-system/kube-proxy")
	set.StringVar(&o.to, "to", "nftables",
		"`proxy` to move to: like --from, but with the modes and flags of this program")
	set.BoolVar(&o.same, "same", false, "both proxies use this library: do not list what kube-proxy does differently")
	set.BoolVar(&o.all, "all-nodes", false, "compare for all nodes but those with Windows, instead of --node-name")
	set.StringVar(&o.hosts, "host-addresses", "", "comma-separated `list` of all addresses that nodes have beside those "+
		"of their Node objects: ADDRESS, or NODE=ADDRESS with --all-nodes")
	set.BoolVar(&o.connections, "connections", false, "count the connections to node ports on loopback addresses that "+
		"this machine, the node, is tracking (Linux, root)")
}

// check checks the flags that belong together, and reads the list of addresses.
func (o *Command) check() error {
	switch {
	case o.all == (o.objects.NodeName != ""):
		return errors.New("one of --node-name and --all-nodes is required")
	case o.all && o.connections:
		return errors.New("--connections is about one node: give --node-name")
	}
	o.addresses = map[string][]netip.Addr{}
	for text := range strings.SplitSeq(o.hosts, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		node, address, ok := strings.Cut(text, "=")
		if !ok {
			node, address = "", text
		}
		a, err := netip.ParseAddr(address)
		if err != nil {
			return fmt.Errorf("--host-addresses: %w", err)
		}
		o.addresses[node] = append(o.addresses[node], a)
	}
	return nil
}

// Run runs the command for a node, or for all nodes if there is no name. print prints the list of differences; if it is
// nil they are printed as text for people. It returns the number of differences; an error may mean that not everything
// could be compared.
func (o *Command) Run(
	ctx context.Context, objects source.Flags, timeout time.Duration, print func(io.Writer, any) error, out io.Writer,
) (int, error) {
	o.objects, o.timeout, o.print, o.warn = objects, timeout, print, os.Stderr
	if timeout <= 0 {
		o.timeout = math.MaxInt64
	}
	o.all = o.all || objects.NodeName == ""
	if err := o.check(); err != nil {
		return 0, err
	}
	return o.run(ctx, out)
}

// run runs the program. It returns the number of differences. An error may mean that not everything could be compared.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	o, err := parse(args, out)
	if err != nil {
		return 0, err
	}
	return o.run(ctx, out)
}

func (o *Command) run(ctx context.Context, out io.Writer) (int, error) {
	c := newComparison(o, out)
	if err := c.read(ctx); err != nil {
		return 0, err
	}
	list, failed := c.compare(ctx)
	err := errors.Join(c.print(list, failed), errors.Join(failed...))
	n := 0
	for _, d := range list {
		if d.NotCompared == "" {
			n++
		} else {
			err = errors.Join(err, fmt.Errorf("%s were not compared: %s", d.Object, d.NotCompared))
		}
	}
	return n, err
}

// comparison is what is compared.
type comparison struct {
	*Command
	out           io.Writer
	before, after dropin.Config
	cluster       replay
	nodes         []string                       // their names
	services      map[model.ServiceName]struct{} // that were compared
	remedies      map[string]string              // by rule, as far as they have been asked for
}

func newComparison(o *Command, out io.Writer) *comparison {
	return &comparison{Command: o, out: out, services: map[model.ServiceName]struct{}{}, remedies: map[string]string{}}
}

// read reads the configurations and the cluster's objects. --timeout limits only this.
func (c *comparison) read(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout,
		fmt.Errorf("no complete list of the cluster's objects after %v: is the API server reachable?", c.timeout))
	defer cancel()
	for _, side := range []struct {
		flag, name string
		to         *dropin.Config
	}{{"--from", c.from, &c.before}, {"--to", c.to, &c.after}} {
		var warnings []config.Warning
		if *side.to, warnings, err = Configuration(ctx, side.name, &c.objects.Cluster); err != nil {
			return fmt.Errorf("%s: %w", side.flag, err)
		}
		for _, w := range warnings {
			fmt.Fprintf(c.warn, "preflight: %s: %v\n", side.flag, w)
		}
	}
	src, err := c.objects.Source()
	if err != nil {
		return err
	}
	if c.cluster, err = collect(ctx, src, watch.AllNodes); err != nil {
		return err
	}
	if number[*corev1.Service](c.cluster) == 0 {
		return errors.New("there are no Services: is the dump of the cluster complete?")
	}
	c.nodes = c.cluster.nodes()
	for node := range c.addresses {
		if node != "" && !slices.Contains(c.nodes, node) {
			return fmt.Errorf("--host-addresses: there is no Node %q", node)
		}
	}
	if !c.all {
		err = known(c.nodes, c.objects.NodeName)
		c.nodes = []string{c.objects.NodeName}
	} else if err = c.leaveOutWindows(); err == nil && len(c.nodes) == 0 {
		err = errors.New("--all-nodes: there are no Nodes")
	}
	if err == nil && number[*discoveryv1.EndpointSlice](c.cluster) == 0 {
		err = errors.New("there are no EndpointSlices: is the dump of the cluster complete?")
	}
	return err
}

// leaveOutWindows leaves out the nodes with Windows: the modes are those of Linux, and kube-proxy is another DaemonSet
// there.
func (c *comparison) leaveOutWindows() error {
	onWindows := func(node string) bool { return c.cluster.forNode(node).onWindows() }
	out := slices.DeleteFunc(slices.Clone(c.nodes), func(node string) bool { return !onWindows(node) })
	c.nodes = slices.DeleteFunc(c.nodes, onWindows)
	switch {
	case len(out) == 0:
	case len(c.nodes) == 0:
		return errors.New("--all-nodes: all Nodes run Windows, and the modes are those of Linux")
	default:
		fmt.Fprintf(c.warn, "preflight: --all-nodes: left out, because they run Windows: %s\n", strings.Join(out, ", "))
	}
	return nil
}

// compare compares the proxies on each of the requested nodes. It returns the differences, and which nodes it could
// not compare.
func (c *comparison) compare(ctx context.Context) (list []difference, failed []error) {
	var flows map[connection]int
	if c.connections {
		var err error
		if flows, err = loopbackConnections(); err != nil {
			return nil, []error{fmt.Errorf("--connections: %w", err)}
		}
	}
	all := union{list: []difference{}, index: map[string]int{}} // [] in JSON, not null
	for _, node := range c.nodes {
		ips, others := c.cluster.addresses(node)
		m := &move{node: node, ips: ips, given: slices.Concat(c.addresses[""], c.addresses[node]), others: others,
			objects: c.cluster.forNode(node), kubeProxy: !c.same, flows: flows}
		var list []difference
		var err error
		switch {
		case m.objects.onWindows():
			err = errors.New("it runs Windows, and the modes are those of Linux")
		case len(ips) == 0:
			err = errors.New("its Node object has no IP address")
		default:
			list, err = m.compare(ctx, c.before, c.after)
		}
		if err != nil {
			failed = append(failed, &notCompared{node, err})
			continue
		}
		for _, name := range m.services() {
			c.services[name] = struct{}{}
		}
		all.add(list, node)
	}
	return all.sorted(), failed
}
