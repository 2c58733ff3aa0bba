package benchmarks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// mode is a way for a proxy to write its rules.
type mode struct {
	name      string
	proxyMode string // the value of --proxy-mode
	iptables  string // which iptables the proxy finds in PATH: "nft" or "legacy"
}

// comparison is one size of a cluster and one mode in which the proxies are compared.
type comparison struct {
	program.Size
	mode mode
}

func comparisons() []comparison {
	nftables := mode{name: "nftables", proxyMode: "nftables"}
	iptablesNFT := mode{name: "iptables-nft", proxyMode: "iptables", iptables: "nft"}
	iptablesLegacy := mode{name: "iptables-legacy", proxyMode: "iptables", iptables: "legacy"}
	size := func(services, endpoints int) program.Size {
		return program.Size{Services: services, Endpoints: endpoints}
	}
	return []comparison{
		{size(1000, 10), nftables}, {size(1000, 10), iptablesLegacy}, {size(1000, 10), iptablesNFT},
		{size(5000, 10), nftables}, {size(5000, 10), iptablesLegacy}, {size(5000, 10), iptablesNFT},
		{size(5000, 50), nftables},
		{size(10000, 10), nftables}, {size(10000, 10), iptablesLegacy},
		{size(44000, 1), nftables},
	}
}

// The names of the two proxies in results.
const (
	upstream = "upstream"
	ours     = "kube-proxy-lib"
)

// figures are what was measured of each proxy.
type figures map[string]*report.SpeedRun

// BenchmarkSideBySide has cmd/judge measure both proxies, and prints a row of the table in docs/benchmarks.md as
// soon as it is known. The names of its parts are size/mode/proxy, so that some can be chosen:
//
//	go test -run - -bench SideBySide/5000x10/nftables -benchtime 1x -timeout 1h ./benchmarks
func BenchmarkSideBySide(b *testing.B) {
	need.Root(b)
	judge := build(b, "cmd/judge")
	programs := map[string]string{upstream: cluster.Program(b, "kube-proxy"), ours: build(b, "cmd/kube-proxy")}
	printHead(os.Stdout, cluster.Version(b))
	for _, c := range comparisons() {
		b.Run(c.Size.String(), func(b *testing.B) {
			b.Run(c.mode.name, func(b *testing.B) {
				f := figures{}
				for _, proxy := range []string{upstream, ours} {
					b.Run(proxy, func(b *testing.B) { f[proxy] = c.measure(b, judge, programs[proxy]) })
				}
				printRow(os.Stdout, c, f)
				demand(b, printGoals(os.Stdout, c, f))
			})
		})
	}
}

// measure measures a proxy. Both get the same flags: kube-proxy's defaults, except for what affects the whole machine.
func (c comparison) measure(b *testing.B, judge, program string) *report.SpeedRun {
	command := program + " --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode " + c.mode.proxyMode +
		" --conntrack-max-per-core 0 --oom-score-adj 0 {flags}"
	if c.mode.iptables != "" {
		command = "PATH=" + linkIPTables(b, c.mode.iptables) + ":$PATH " + command
	}
	folder := b.TempDir()
	out, failed := exec.Command(judge, "--run", "^$", "--speed", c.Size.String(), "--churn", "10,100,1000",
		"--report", folder, "--proxy", command).CombinedOutput()
	text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
	require.NoError(b, err, "%s", out)
	r, err := report.Read(text)
	require.NoError(b, err)
	require.NotNil(b, r.Speed, "%s", out)
	assert.NoError(b, failed, "%s", out)
	fmt.Printf("Linux %s, %s\n", r.Kernel, r.Speed.Machine)
	s := &r.Speed.Runs[0]
	b.ReportMetric(0, "ns/op") // it would mean nothing
	for _, column := range columns() {
		if v := column.value(s); v > 0 {
			b.ReportMetric(v, column.unit)
		}
	}
	return s
}

// linkIPTables makes a folder with the iptables programs of a variant.
func linkIPTables(b *testing.B, variant string) string {
	dir := b.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			// The programs depend on the name that they are called by.
			target, err := filepath.EvalSymlinks(need.Program(b, family+"-"+variant+suffix))
			require.NoError(b, err)
			require.NoError(b, os.Symlink(target, filepath.Join(dir, family+suffix)))
		}
	}
	return dir
}

// build builds a program of this checkout, as upstream's are built.
func build(b *testing.B, folder string) string {
	path := filepath.Join(b.TempDir(), filepath.Base(folder))
	cmd := exec.Command("go", "build", "-modfile=cmd/programs.mod", "-ldflags", "-s -w", "-o", path, "./"+folder)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, string(out))
	return path
}
