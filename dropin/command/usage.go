package command

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// group is a group of flags in the text of --help.
type group struct {
	title string
	flags *pflag.FlagSet
}

// group adds a group with the flags that add defines.
func (f *flags) group(title string, add func()) {
	known := map[string]bool{}
	f.set.VisitAll(func(flag *pflag.Flag) { known[flag.Name] = true })
	add()
	g := group{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
	g.flags.SortFlags = false
	f.set.VisitAll(func(flag *pflag.Flag) {
		if !known[flag.Name] {
			g.flags.AddFlag(flag)
		}
	})
	f.groups = append(f.groups, g)
}

// printUsage writes the text of --help.
func (f *flags) printUsage(out io.Writer) {
	fmt.Fprint(out, `Keeps the rules of this node for Services in step with the cluster, as Kubernetes' kube-proxy does.

Usage:
  kube-proxy [flags]
  kube-proxy preflight [flags]

Examples:
  # In a pod: the API server is that of the service account
  kube-proxy --config=/var/lib/kube-proxy/config.yaml --hostname-override=$(NODE_NAME)

  # On a node, without a configuration file
  kube-proxy --kubeconfig=FILE --proxy-mode=nftables --cluster-cidr=10.244.0.0/16

  # Write the configuration that the flags mean to a file
  kube-proxy --proxy-mode=nftables --cluster-cidr=10.244.0.0/16 --write-config-to=config.yaml

  # Remove everything that this program has made
  kube-proxy --cleanup

  # What would be different for the services of a cluster? See kube-proxy preflight --help
  kube-proxy preflight --from daemonset --to nftables --kubeconfig FILE --all-nodes
`)
	for _, g := range f.groups {
		fmt.Fprintf(out, "\n%s:\n%s", g.title, g.flags.FlagUsages())
	}
}
