package docs_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/hns"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	hnsdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	iptablesdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	ipvsdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nftdp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// described is a Registerer that remembers the names of metrics and their labels.
type described map[string][]string

var (
	description = regexp.MustCompile(`fqName: "(\w+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	constant    = regexp.MustCompile(`="[^"]*"`) // the value of a label, for example of ip_family
)

func (d described) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for desc := range ch {
		m := description.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("cannot read %v", desc)
		}
		names := constant.ReplaceAllString(m[2], "") + "," + m[3]
		labels := strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		d[m[1]] = labels
	}
	return nil
}

func (d described) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d described) Unregister(prometheus.Collector) bool { return true }

// registered returns the metrics of the library, with their labels.
func registered(t *testing.T) described {
	d := described{}
	byNFT, err := nft.New(t.Context(), nft.Options{Dataplane: nftdp.NewFake(), Common: frontend.Common{Metrics: d}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, byNFT.Close()) })
	byIPTables, err := iptables.New(t.Context(), iptables.Options{
		Dataplanes: []iptablesdp.Interface{iptablesdp.NewFake(model.IPv4)},
		Common:     frontend.Common{Metrics: d, Sysctls: sysctl.Root(t.TempDir())}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, byIPTables.Close()) })
	byIPVS, err := ipvs.New(t.Context(), ipvs.Options{Dataplane: ipvsdp.NewFake(), NFTables: nftdp.NewFake(),
		Common: frontend.Common{Families: []model.Family{model.IPv4}, Metrics: d, Host: host(),
			Sysctls: sysctl.Root(t.TempDir())}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, byIPVS.Close()) })
	loopback, err := userspace.NewLoopback(t.Context(), userspace.Options{
		Common: frontend.Common{Metrics: d, Host: &nodeaddr.Fake{}}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loopback.Close()) })
	byHNS, err := hns.New(t.Context(), hns.Options{Network: "cbr0", Dataplane: hnsdp.NewFake(),
		Common: frontend.Common{Metrics: d}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, byHNS.Close()) })
	source, err := watch.NewFiles("../examples/mock/cluster")
	require.NoError(t, err)
	server, err := brain.New(t.Context(), brain.Options{Source: source, Metrics: d})
	require.NoError(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, server.Run(ended)) // it registers when it runs, like the next
	require.NoError(t, kubeproxy.Run(ended, kubeproxy.Options{
		Feed: &kubeproxy.LocalFeed{Source: source}, Sink: sink.NewForward(nil), Metrics: d}))
	d.MustRegister(conntrack.Wrap(t.Context(), sink.NewForward(nil), conntrack.Options{}),
		health.New(0), prom.NewRequests())
	return d
}

// TestEveryMetricIsExplained: docs/operate/metrics.md has every metric with its labels, and no other.
func TestEveryMetricIsExplained(t *testing.T) {
	page, err := os.ReadFile("operate/metrics.md")
	require.NoError(t, err)
	explained := described{}
	row := regexp.MustCompile("(?m)^\\| `((?:kubeproxy|rest_client)_\\w+)` \\| (?:histogram|gauge|counter) \\|([^|]*)\\|")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		labels := strings.FieldsFunc(m[2], func(r rune) bool { return strings.ContainsRune(", `", r) })
		slices.Sort(labels)
		explained[m[1]] = labels
	}
	require.NotEmpty(t, explained)
	assert.Equal(t, registered(t), explained)
}

// TestMetricsAreInMetricsGo: that is where CONTRIBUTING.md says that they are. Package prom is about metrics alone.
func TestMetricsAreInMetricsGo(t *testing.T) {
	made := regexp.MustCompile(`\bprometheus\.New(Counter|Gauge|Histogram|Desc)|\bprom\.New(One)?Histogram\(`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "prom" || name == "testdata" || name == ".git"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || name == "metrics.go":
			return nil
		}
		text, err := os.ReadFile(path)
		assert.Empty(t, made.FindString(string(text)), path)
		return err
	}))
}

// TestNoMetricIsMadeUp: documentation, alerts and the dashboard name metrics that exist.
func TestNoMetricIsMadeUp(t *testing.T) {
	exists := registered(t)
	files, err := filepath.Glob("operate/*")
	require.NoError(t, err)
	for _, pattern := range []string{"*.md", "../*.md", "../examples/*/README.md", "../cmd/*/README.md"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, more...)
	}
	named := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bkubeproxy_\w*[a-z0-9]\b`).FindAllString(string(text), -1) {
			base := metricOf(name)
			_, ok := exists[base]
			// A prefix, as in kubeproxy_remote_..., and what kube-proxy has and this library has not.
			prefix := base == "kubeproxy_nftables_localhost_nodeport_rejected_packets_total" ||
				base == "kubeproxy_remote" || base == "kubeproxy_sync_proxy_rules_ipvs"
			assert.True(t, ok || prefix, "%s names %s, which does not exist", file, name)
			if filepath.Ext(file) == ".json" {
				named[base] = true
			}
		}
	}
	for name := range exists {
		if strings.HasPrefix(name, "rest_client_") {
			continue // every program of Kubernetes has them, and dashboards for them
		}
		assert.True(t, named[name], "the dashboard does not show %s", name)
	}
}

// metricOf returns the metric that a series belongs to: a histogram has several.
func metricOf(series string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		series = strings.TrimSuffix(series, suffix)
	}
	return series
}

// TestAlerts: the rules are valid and do what their tests say.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", "operate/alerts.yaml")
	promtool(t, "test", "rules", "operate/alerts_test.yaml")
}

// TestDashboard: the dashboard's queries can be parsed, every panel has one, and panels do not cover each other. All
// queries follow the dashboard's choice of a data source, jobs and instances.
func TestDashboard(t *testing.T) {
	chosen := dataSource{"prometheus", "${datasource}"}
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	var before []position
	for _, p := range readDashboard(t).Panels {
		for _, o := range before {
			g := p.GridPos
			overlap := g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H
			assert.False(t, overlap, "%s covers another panel", p.Title)
		}
		before = append(before, p.GridPos)
		if p.Type == "row" {
			continue
		}
		assert.NotEmpty(t, p.Targets, "%s has no query", p.Title)
		assert.Equal(t, chosen, p.Datasource, p.Title)
		for _, target := range p.Targets {
			assert.Equal(t, chosen, target.Datasource, p.Title)
			for _, m := range selector.FindAllStringSubmatch(target.Expr, -1) {
				assert.Contains(t, m[2], `job=~"$job", instance=~"$instance"`, "%s: %s", p.Title, m[1])
			}
			rules = append(rules, rule{fmt.Sprintf("query_%d", len(rules)), variables.Replace(target.Expr)})
		}
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	promtool(t, "check", "rules", path)
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), need.Program(t, "promtool"), args...).CombinedOutput()
	require.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), out)
}

// TestTheTableOfAlertsIsComplete: metrics.md has a row for each alert, in the same words, and for no other.
func TestTheTableOfAlertsIsComplete(t *testing.T) {
	page, err := os.ReadFile("operate/metrics.md")
	require.NoError(t, err)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(KubeProxy\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	rules, err := os.ReadFile("operate/alerts.yaml")
	require.NoError(t, err)
	var defined []string
	for _, rule := range regexp.MustCompile(`(?m)^  - alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		defined = append(defined, rule[1])
	}
	require.NotEmpty(t, defined)
	assert.ElementsMatch(t, defined, listed)
}
