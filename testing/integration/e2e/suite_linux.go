package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit/owntests"
)

// DefaultSuite selects Kubernetes' tests of services, DNS and host ports. It leaves out those of network policies,
// which no service proxy implements; those that need the Internet or measure throughput; those that are slow or
// disruptive; and, where the kernel has no sockets for SCTP, those that need them.
func DefaultSuite() owntests.Suite {
	features := []string{"NetworkPolicy", "Networking-DNS", "Networking-IPv4", "Networking-IPv6",
		"Networking-Performance", "PerformanceDNS"}
	if s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err != nil {
		features = append(features, "SCTPConnectivity")
	} else {
		_ = unix.Close(s)
	}
	return owntests.Suite{Focus: `\[sig-network\]`, Parallel: 8,
		Skip: `\[Disruptive\]|\[Flaky\]|\[Slow\]|\[Feature:(` + strings.Join(features, "|") + `)\]`}
}

// Test runs tests on the cluster, and then runs those that failed once more, one at a time.
func (c *Cluster) Test(ctx context.Context, s owntests.Suite, tested owntests.Tested) (*owntests.Report, error) {
	r := &owntests.Report{Tested: tested, Kubernetes: c.Options.Version, FeatureGates: c.Options.FeatureGates,
		Nodes: c.Options.Nodes, Suite: s, Started: time.Now().UTC().Truncate(time.Second), Processors: runtime.NumCPU()}
	proxy, err := os.ReadFile(c.Options.file("proxy"))
	if err != nil {
		return nil, fmt.Errorf("the proxy's command: %w", err)
	}
	r.Tested.Command = string(proxy)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	r.Kernel = unix.ByteSliceToString(name.Release[:])
	r.LoadBefore = load()
	restarts, err := c.Restarts()
	if err != nil {
		return nil, err
	}
	results, err := c.run(ctx, s, "first")
	if err != nil {
		return nil, err
	}
	if now, err := c.Restarts(); err != nil {
		return nil, err
	} else if now != restarts {
		return nil, errors.New("a node has restarted meanwhile, see machine.log: the results are worth nothing")
	}
	r.LoadAfter = load()
	addTo(r, results)
	if r.Selected == 0 {
		return nil, fmt.Errorf("no test matches %q and not %q", s.Focus, s.Skip)
	}
	r.Minutes = int(time.Since(r.Started).Round(time.Minute) / time.Minute)
	for i := range r.Failures {
		f := &r.Failures[i]
		again, err := c.run(ctx, owntests.Suite{Focus: focusOn(f.Test), Parallel: 1}, "again-"+strconv.Itoa(i))
		if err != nil {
			return nil, fmt.Errorf("%s, again: %w", f.Test, err)
		}
		f.Again = outcome(again)
	}
	return r, nil
}

// focusOn returns a regular expression for one test. ginkgo compares it with the name of the suite and the test's text;
// the name in its report is that text, and then the test's labels in brackets if it has any.
func focusOn(test string) string {
	text, labels := test, ""
	if i := strings.LastIndex(test, " ["); i >= 0 && strings.HasSuffix(test, "]") {
		text, labels = test[:i], test[i:]
	}
	return " " + regexp.QuoteMeta(text) + "(" + regexp.QuoteMeta(labels) + ")?$"
}

// outcome returns the outcome of the only test of a run.
func outcome(results []result) string {
	ran := slices.DeleteFunc(results, func(r result) bool { return r.outcome == "" })
	if len(ran) != 1 {
		return fmt.Sprintf("%d tests ran", len(ran))
	}
	return ran[0].outcome
}

// run runs e2e.test in the machine's namespaces and returns its results.
func (c *Cluster) run(ctx context.Context, s owntests.Suite, name string) ([]result, error) {
	dir := c.Options.file(filepath.Join("suite", name))
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	kubeconfig := c.Options.file("kubeconfig-inside")
	cmd := c.inside(ctx, nil, filepath.Join(c.Options.Programs, "ginkgo"), "--nodes="+strconv.Itoa(s.Parallel),
		"--no-color", "--timeout=3h", "--output-dir="+dir, "--junit-report=junit.xml", "--focus="+s.Focus, "--skip="+s.Skip,
		filepath.Join(c.Options.kubernetes(), "e2e.test"), "--", "--kubeconfig="+kubeconfig, "--provider=skeleton",
		"--num-nodes="+strconv.Itoa(c.Options.Nodes), "--node-os-distro=debian", "--dump-logs-on-failure=false",
		"--disable-log-dump=true")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+c.nodes[0].Path)
	cmd.Stdout, cmd.Stderr = log, log
	runError := cmd.Run() // it fails if a test does
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the tests were interrupted, their log is %s: %w", log.Name(), context.Cause(ctx))
	}
	results, err := readResults(filepath.Join(dir, "junit.xml"))
	if err != nil {
		return nil, fmt.Errorf("no results, see %s: %w", log.Name(), errors.Join(runError, err))
	}
	return results, nil
}

// load returns the load average of one minute.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	value, _ := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	return value
}
