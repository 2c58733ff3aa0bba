package main

import (
	"context"
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-proxy-lib/cmd/internal/preflight"
)

// errDifferences is what preflight returns if there are differences, which it has printed. It is not a failure.
var errDifferences = errors.New("there are differences")

func (p *program) preflightCommand() *cobra.Command {
	var compare preflight.Command
	cmd := &cobra.Command{
		Use: "preflight", Short: "List what would change with another proxy or mode", Args: cobra.NoArgs,
		Long: "The exit code is 0 if nothing would change, 1 if something would, and 2 if not everything could be compared.",
		Example: `  # With mode nftables of this kube-proxy instead of the one that kubeadm installed
  kubectl serviceproxy preflight --from daemonset --to nftables

  # The same, for one node and as YAML, with the configuration that is planned
  kubectl serviceproxy preflight --from daemonset --to new.yaml --node n1 -o yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.preflight(cmd.Context(), &compare) },
	}
	set := flag.NewFlagSet("", flag.ContinueOnError)
	compare.Register(set)
	for name, usage := range map[string]string{
		"from":           "`proxy` to move from: like --to, but with the modes and flags of Kubernetes' kube-proxy",
		"to":             "`proxy` to move to: a mode, a file, flags, or the cluster's own: daemonset or configmap",
		"host-addresses": "`list` of addresses that Node objects lack: ADDRESS or NODE=ADDRESS, with commas",
		"connections":    "also count connections to node ports on 127.0.0.1 and ::1 (on the node itself, as root)",
		"same":           "both proxies use this library: leave out what Kubernetes' kube-proxy does differently",
	} {
		set.Lookup(name).Usage = usage // shorter than that of kube-proxy preflight
	}
	cmd.Flags().AddGoFlagSet(set)
	p.addSource(cmd)
	cmd.Flags().Lookup("node").Usage = "the `name` of the node; without it, all nodes are compared"
	cmd.Flags().Lookup("all-nodes").Hidden = true // it is the default here
	for _, name := range []string{"from", "to"} {
		complete(cmd, name, fixed("iptables", "ipvs", "nftables", "daemonset", "configmap"))
	}
	return cmd
}

// preflight compares two proxies.
func (p *program) preflight(ctx context.Context, compare *preflight.Command) error {
	p.exitCode = 2
	limited, cancel, err := p.begin(ctx) // for the permissions; the comparison has a limit of its own
	if err != nil {
		return err
	}
	defer cancel()
	if p.fromCluster() {
		client, err := p.cluster.client()
		if err != nil {
			return err
		}
		if err := mayRead(limited, client); err != nil {
			return err
		}
	}
	print := p.print
	if p.format == "text" {
		print = nil
	}
	n, err := compare.Run(ctx, p.objects, p.timeout, print, p.out)
	if err == nil && n > 0 {
		p.exitCode = 1
		err = errDifferences
	}
	return err
}
