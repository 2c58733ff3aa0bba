// Command cluster runs a Kubernetes cluster on this machine, with any service proxy on its nodes, and Kubernetes' own
// tests against it. Its --help shows how.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
)

func main() {
	if child, err := e2e.Child(os.Args); child {
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

const usage = `Runs a Kubernetes cluster on this machine, as root, with any service proxy on its nodes.

  cluster up --nodes 3                  starts one, and prints what to set for kubectl
  cluster proxy 'kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} --conntrack-max-per-core 0'
                                        ends the proxy of every node, and starts this one
  cluster test --name NAME --report FILE
                                        runs Kubernetes' own network tests
  cluster exec n1 nft list ruleset      runs a command on a node, or where clients outside are: outside curl URL
  cluster down                          ends it, and removes its folder
  cluster run --nodes 6 --name NAME 'COMMAND'
                                        a cluster for one run of the tests: up, proxy, test and down

In a command {kubeconfig} stands for a file with all rights, {node}, {nodeIPs} and {podCIDRs} for the node's own,
{clusterCIDRs} for the addresses of all pods, {machine} for the address of the machine outside, {dir} for a folder of
the node. --conntrack-max-per-core 0, because a node cannot set the kernel's nf_conntrack_max.
Logs are in the folder --dir. If something fails, run ends the cluster but keeps them; the next up or run removes them.
Before the first one, testing/integration/e2e/build makes what it needs.

Flags, with the commands that they are for:
`

// command is what the arguments ask for.
type command struct {
	options  e2e.Options
	cleanup  string
	suite    owntests.Suite
	tested   owntests.Tested
	report   string
	baseline string
}

func run(ctx context.Context, args []string) error {
	programs, err := e2e.Programs()
	if err != nil {
		return err
	}
	c := command{options: e2e.Options{Programs: programs}, suite: e2e.DefaultSuite()}
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&c.options.Dir, "dir", "/var/tmp/kube-proxy-lib-cluster", "the `folder` of the cluster")
	flags.IntVar(&c.options.Nodes, "nodes", 2, "up, run: the number of nodes")
	flags.StringVar(&c.options.Version, "kubernetes", "",
		"up, run: the `version` of Kubernetes (default: the first one in kubernetes-versions)")
	flags.StringVar(&c.options.FeatureGates, "feature-gates", "", "up, run: feature gates of Kubernetes' programs")
	flags.StringVar(&c.cleanup, "cleanup", "", "proxy: a `command` that removes what the one before has left")
	flags.StringVar(&c.suite.Focus, "focus", c.suite.Focus, "test, run: a `pattern` for names of tests")
	flags.StringVar(&c.suite.Skip, "skip", c.suite.Skip, "test, run: a `pattern` for names of tests that do not run")
	flags.IntVar(&c.suite.Parallel, "parallel", c.suite.Parallel, "test, run: how many tests run at a time")
	flags.StringVar(&c.tested.Name, "name", "", "test, run: the proxy's name")
	flags.StringVar(&c.tested.Version, "version", "", "test, run: the proxy's version")
	flags.StringVar(&c.tested.Mode, "mode", "", "test, run: the proxy's mode")
	flags.StringVar(&c.report, "report", "report.yaml", "test, run: the `file` of the report")
	flags.StringVar(&c.baseline, "baseline", "",
		"test, run: the `report` of another proxy; what fails here twice, and not there, is an error")
	flags.StringVar(&c.tested.Beside, "beside", "",
		"run: a `command` that runs on the machine outside meanwhile, for example a brain")
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	return c.run(ctx, name, flags.Args())
}

func (c command) run(ctx context.Context, name string, args []string) error {
	switch {
	case name == "images" && len(args) == 2: // for the script build
		return e2e.WriteImages(args[0], args[1])
	case name == "up" && len(args) == 0:
		made, err := e2e.Up(ctx, c.options)
		if err == nil {
			fmt.Printf("export KUBECONFIG=%s\n", made.Kubeconfig())
		}
		return err
	case name == "run" && len(args) == 1:
		return c.once(ctx, args[0])
	case name == "proxy" && len(args) == 1, (name == "test" || name == "down") && len(args) == 0,
		name == "exec" && len(args) > 1:
	default:
		return fmt.Errorf("no such command: %q; --help shows them", append([]string{name}, args...))
	}
	open, err := e2e.Open(c.options.Dir)
	if err != nil && (name != "down" || !errors.Is(err, e2e.ErrEnded)) {
		return err
	}
	switch name {
	case "proxy":
		return open.Proxy(ctx, args[0], c.cleanup)
	case "test":
		_, err := c.test(ctx, open)
		return err
	case "exec":
		return execute(ctx, open, args[0], args[1:])
	}
	return open.Down(ctx)
}

// execute replaces this process with a command on a node, or outside of all nodes, so that input, output and exit
// status are those of the command.
func execute(ctx context.Context, on *e2e.Cluster, where string, args []string) error {
	if where == "outside" {
		where = ""
	}
	cmd, err := on.Command(ctx, where, args...)
	if err == nil {
		err = cmd.Err
	}
	if err != nil {
		return err
	}
	return syscall.Exec(cmd.Path, cmd.Args, cmd.Environ())
}

// once makes a cluster for one run of the tests. The logs stay if something fails.
func (c command) once(ctx context.Context, proxy string) error {
	made, err := e2e.Up(ctx, c.options)
	if err != nil {
		return err
	}
	fmt.Println("A cluster is there. To look at it: export KUBECONFIG=" + made.Kubeconfig())
	report, err := c.testProxy(ctx, made, proxy)
	ctx = context.WithoutCancel(ctx)
	if err == nil && len(report.FailedAgain()) == 0 {
		return made.Down(ctx)
	}
	kept := fmt.Sprintf("The logs stay in %s until the next cluster there.", c.options.Dir)
	if err := errors.Join(err, made.End(ctx)); err != nil {
		return fmt.Errorf("%w\n%s", err, kept)
	}
	fmt.Println(kept)
	return nil
}

// testProxy runs the tests against a proxy, and what runs beside it.
func (c command) testProxy(ctx context.Context, made *e2e.Cluster, proxy string) (*owntests.Report, error) {
	if err := made.Proxy(ctx, proxy, ""); err != nil {
		return nil, err
	}
	if c.tested.Beside == "" {
		return c.test(ctx, made)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, err := made.Beside(ctx, c.tested.Beside)
	if err != nil {
		return nil, fmt.Errorf("--beside: %w", err)
	}
	go func() {
		cancel(fmt.Errorf("--beside: the command has ended: %w", cmp.Or(<-ended, errors.New("exit status 0"))))
	}()
	return c.test(ctx, made)
}

// test runs tests, writes the report to a file, and compares it with the baseline, if there is one.
func (c command) test(ctx context.Context, on *e2e.Cluster) (*owntests.Report, error) {
	var than *owntests.Report
	if c.baseline != "" {
		text, err := os.ReadFile(c.baseline)
		if err == nil {
			than, err = owntests.Read(text)
		}
		if err != nil {
			return nil, fmt.Errorf("the baseline %s: %w", c.baseline, err)
		}
	}
	report, err := on.Test(ctx, c.suite, c.tested)
	if err != nil {
		return nil, err
	}
	fmt.Println(report.Summary())
	file, err := os.Create(c.report)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(owntests.WriteYAML(file, report), file.Close()); err != nil {
		return nil, err
	}
	if than == nil {
		return report, nil
	}
	fmt.Println("baseline:", than.Summary())
	if !than.Comparable(report) {
		return nil, fmt.Errorf("%s has other tests or another version of Kubernetes: the results cannot be compared",
			c.baseline)
	}
	if worse := report.Worse(than); len(worse) > 0 {
		return nil, fmt.Errorf("tests failed also alone, and not in %s:\n%s", c.baseline, strings.Join(worse, "\n"))
	}
	return report, nil
}
