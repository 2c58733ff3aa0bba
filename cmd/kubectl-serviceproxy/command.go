package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-proxy-lib/internal/program/buildinfo"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
)

// program is one run of the program.
type program struct {
	out, notes io.Writer // notes are remarks that are not part of the output
	exitCode   int       // if there is an error

	cluster access
	objects source.Flags // --file and --node
	brain   brainFlags
	url     string // of a running proxy's page
	proxy   string // its configuration
	timeout time.Duration
	watch   bool
	format  string
	print   printFunc // in that format
	note    string    // what to say before the first answer
}

// run runs the program.
func (p *program) run(ctx context.Context, args []string) error {
	p.exitCode = 1
	p.objects.Config = p.cluster.config
	root := p.command()
	root.SetArgs(append([]string{}, args...)) // of nil it would take those of the process
	err := root.ExecuteContext(ctx)
	if p.fromCluster() {
		err = nextStep(err)
	}
	return err
}

// help is examples, then the usage, then the command's own flags: what fits on a screen.
const help = `{{.Short}}.

Examples:
{{.Example}}

Usage: {{.UseLine}}
{{with .Long}}{{.}}
{{end}}{{if .HasAvailableSubCommands}}
Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name 10}} {{.Short}}{{end}}{{end}}

"kubectl serviceproxy COMMAND --help" has the flags of a command.
{{else if .HasAvailableLocalFlags}}
Flags (kubectl's, such as -n, --context and --kubeconfig, are in "kubectl serviceproxy options"):
{{.LocalFlags.FlagUsagesWrapped 118 | trimTrailingWhitespaces}}
{{end}}`

// command returns all commands.
func (p *program) command() *cobra.Command {
	root := &cobra.Command{
		Use:         "serviceproxy COMMAND",
		Short:       "Says what a node does with Services, and why; it only reads, whatever proxy the cluster runs",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl serviceproxy"},
		Example: `  # Why is an endpoint of a Service not used on a node?
  kubectl serviceproxy explain shop/web --node n1

  # Where does a packet go?
  kubectl serviceproxy flow 'pod shop/cart-0 -> shop/web:443' --proxy daemonset

  # What would change with kube-proxy in mode nftables?
  kubectl serviceproxy preflight --from daemonset --to nftables`,
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // kubectl's does it
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return fmt.Errorf("unknown command %q: see kubectl serviceproxy --help", args[0])
		},
	}
	p.cluster.register(root)
	root.PersistentFlags().BoolP("help", "h", false, "print examples and flags")
	root.Version = buildinfo.Version()
	root.SetOut(p.out)
	root.SetErr(p.notes)
	root.SetHelpTemplate(help)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(p.explainCommand(), p.flowCommand(), p.stateCommand(), p.preflightCommand(), p.rbacCommand(),
		p.optionsCommand())
	return root
}

// optionsCommand lists the flags that --help leaves out.
func (p *program) optionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the flags that are kubectl's, and those for brains", Args: cobra.NoArgs,
		Example: "  kubectl serviceproxy options",
		RunE: func(cmd *cobra.Command, _ []string) error {
			state := p.stateCommand().Flags()
			ofBrains := pflag.NewFlagSet("", pflag.ContinueOnError)
			state.VisitAll(func(f *pflag.Flag) {
				if f.Hidden {
					f.Hidden = false
					ofBrains.AddFlag(f)
				}
			})
			_, err := fmt.Fprintf(p.out, "Flags of kubectl, for every command:\n%s\nFlags that go with --brain:\n%s",
				cmd.Root().PersistentFlags().FlagUsagesWrapped(118), ofBrains.FlagUsagesWrapped(118))
			return err
		},
	}
}

// addSource adds the flags for the source of what is printed, and for the output.
func (p *program) addSource(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&p.objects.NodeName, "node", "", "the `name` of the node; may be left out if there is only one")
	set.StringVar(&p.objects.File, "file", "",
		"read Kubernetes objects from YAML or JSON at this `path` instead of a cluster")
	set.DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to wait for an answer; 0: forever")
	set.StringVarP(&p.format, "output", "o", "text", "output `format`: text, json, yaml or jsonpath=TEMPLATE")
	complete(cmd, "node", p.cluster.completeObjects(listNodes))
	complete(cmd, "output", fixed("text", "json", "yaml", "jsonpath="))
}

// addProxy adds the flag for the configuration of the proxy.
func (p *program) addProxy(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.proxy, "proxy", "", "the proxy's `configuration`: daemonset or configmap, for that of the "+
		"cluster's kube-proxy; a file; or flags of kube-proxy, such as --cluster-cidr=10.244.0.0/16")
	complete(cmd, "proxy", fixed("daemonset", "configmap"))
}

// begin checks the flags that all commands have, and limits the time.
func (p *program) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	var err error
	if p.print, err = printer(p.format); err != nil {
		return ctx, nil, err
	}
	if p.brain.Given() && p.objects.File != "" || p.url != "" && (p.brain.Given() || p.objects.File != "") {
		return ctx, nil, errors.New("only one of --file, --brain and --url may be given")
	}
	if err := p.brain.Check(); err != nil {
		return ctx, nil, err
	}
	if p.timeout <= 0 || p.watch {
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("no answer after %v: does %s exist, and does it "+
		"answer? A larger --timeout waits longer", p.timeout, p.origin()))
	return ctx, cancel, nil
}

// origin names the source, for errors.
func (p *program) origin() string {
	if p.brain.Given() {
		return "the brain"
	}
	return cmp.Or(p.url, p.objects.File, "the API server (kubectl cluster-info)")
}

// fromCluster reports whether the source is the API server.
func (p *program) fromCluster() bool { return p.objects.File == "" && !p.brain.Given() && p.url == "" }
