// Command cluster runs a Kubernetes cluster on this machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

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

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("give a command: up, proxy, test or down")
	}
	flags := flag.NewFlagSet("cluster "+args[0], flag.ContinueOnError)
	dir := flags.String("dir", "/var/tmp/kube-proxy-lib-cluster", "the folder of the cluster")
	programs, err := e2e.Programs()
	if err != nil {
		return err
	}
	o := e2e.Options{Programs: programs}
	flags.IntVar(&o.Nodes, "nodes", 2, "up: the number of nodes")
	flags.StringVar(&o.Version, "kubernetes", "", "up: the version of Kubernetes (default: as in kubernetes-versions)")
	flags.StringVar(&o.FeatureGates, "feature-gates", "", "up: feature gates of Kubernetes' programs")
	suite := e2e.DefaultSuite()
	flags.StringVar(&suite.Focus, "focus", suite.Focus, "test: a regular expression for names of tests")
	flags.StringVar(&suite.Skip, "skip", suite.Skip, "test: a regular expression for names of tests that do not run")
	flags.IntVar(&suite.Parallel, "parallel", suite.Parallel, "test: how many tests run at a time")
	cleanup := flags.String("cleanup", "", "proxy: a command that removes what the one before has left")
	var tested e2e.Tested
	flags.StringVar(&tested.Name, "name", "", "test: the proxy's name")
	flags.StringVar(&tested.Version, "version", "", "test: the proxy's version")
	flags.StringVar(&tested.Mode, "mode", "", "test: the proxy's mode")
	out := flags.String("report", "report.yaml", "test: the file of the report")
	baseline := flags.String("baseline", "",
		"test: the report of another proxy; what fails here twice, and not there, is an error")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.Dir = *dir
	switch args[0] {
	case "up":
		c, err := e2e.Up(ctx, o)
		if err != nil {
			return err
		}
		fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
		return nil
	case "images":
		return e2e.WriteImages(flags.Arg(0), flags.Arg(1))
	}
	c, err := e2e.Open(*dir)
	if err != nil {
		return err
	}
	switch args[0] {
	case "test":
		return test(ctx, c, suite, tested, *out, *baseline)
	case "proxy":
		return c.Proxy(ctx, flags.Arg(0), *cleanup)
	case "down":
		return c.Down(ctx)
	}
	return fmt.Errorf("there is no command %q", args[0])
}

// test runs tests, writes the report to a file, and compares it with another one, unless that is empty.
func test(ctx context.Context, c *e2e.Cluster, s e2e.Suite, tested e2e.Tested, out, baseline string) error {
	var than *e2e.Report
	if baseline != "" {
		var err error
		if than, err = e2e.ReadReport(baseline); err != nil {
			return fmt.Errorf("the baseline: %w", err)
		}
	}
	report, err := c.Test(ctx, s, tested)
	if err != nil {
		return err
	}
	fmt.Println(report.Summary())
	if err := report.Write(out); err != nil {
		return err
	}
	if than == nil {
		return nil
	}
	fmt.Println("baseline:", than.Summary())
	if !than.Comparable(report) {
		return fmt.Errorf("%s is of other tests or another Kubernetes: nothing can be said about a difference", baseline)
	}
	if worse := report.Worse(than); len(worse) > 0 {
		return fmt.Errorf("failed also alone, and not in %s:\n%s", baseline, strings.Join(worse, "\n"))
	}
	return nil
}
