package benchmarks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// mode is a way for a proxy to write its rules.
type mode struct {
	name      string
	proxyMode string // the value of --proxy-mode
	iptables  string // which iptables the proxy finds in PATH: "nft" or "legacy"
}

// comparison is one size and mode in which the proxies are compared.
type comparison struct {
	services   int
	mode       mode
	rounds     int           // each proxy is measured so often, in turn; all but the first are brief
	startLimit time.Duration // how long a proxy may take until everything can be reached
	brief      bool          // start and changes of one endpoint only
}

const endpointsPerService = 10

// comparisons are in the order of their size, because one cluster grows from one to the next.
func comparisons() []comparison {
	nftables := mode{name: "nftables", proxyMode: "nftables"}
	iptablesNFT := mode{name: "iptables-nft", proxyMode: "iptables", iptables: "nft"}
	iptablesLegacy := mode{name: "iptables-legacy", proxyMode: "iptables", iptables: "legacy"}
	ipvs := mode{name: "ipvs", proxyMode: "ipvs"} // in a virtual machine, which is slow
	return []comparison{
		{100, ipvs, 1, 10 * time.Minute, true},
		{1000, nftables, 2, time.Minute, false},
		{1000, iptablesLegacy, 2, time.Minute, false},
		{1000, iptablesNFT, 2, time.Minute, false},
		{1000, ipvs, 1, 20 * time.Minute, true},
		{5000, nftables, 2, 2 * time.Minute, false},
		{5000, iptablesLegacy, 2, 2 * time.Minute, false},
		{5000, iptablesNFT, 1, 20 * time.Minute, false}, // upstream's takes seven minutes, if nothing else runs
		{10000, nftables, 2, 3 * time.Minute, false},
		{10000, iptablesLegacy, 1, 2 * time.Minute, false},
	}
}

// The names of the two proxies in results.
const (
	upstream = "upstream"
	ours     = "kube-proxy-lib"
)

// BenchmarkSideBySide prints one table for each size and mode, and at last one of all. The names of its parts are
// size/mode/proxy, so that some can be chosen:
//
//	go test -run - -bench SideBySide/5000x10/nftables -benchtime 1x -timeout 1h ./benchmarks
func BenchmarkSideBySide(b *testing.B) {
	need.Root(b)
	programs := map[string]string{upstream: cluster.Program(b, "kube-proxy"), ours: buildExample(b, "kube-proxy")}
	c := cluster.Start(b, cluster.Options{})
	control, err := findControlPlane()
	require.NoError(b, err)
	createNode(b, c.Client)
	objects := &objects{client: c.Client}
	setting := setting{c, control, objects, programs}
	warmed := map[string]bool{}
	summary := &summary{version: c.Version}
	defer summary.print(os.Stdout)
	for all := comparisons(); len(all) > 0; {
		services, n := all[0].services, 0
		for n < len(all) && all[n].services == services {
			n++
		}
		b.Run(fmt.Sprintf("%dx%d", services, endpointsPerService), func(b *testing.B) {
			for _, cmp := range all[:n] {
				b.Run(cmp.mode.name, func(b *testing.B) {
					if cmp.mode.proxyMode == "ipvs" {
						needIPVS(b)
					}
					if !warmed[cmp.mode.name] {
						setting.warm(b, cmp)
						warmed[cmp.mode.name] = true
					}
					objects.grow(b, services)
					results := setting.compare(b, cmp)
					summary.lines = append(summary.lines, summaryLine{cmp, results})
				})
			}
		})
		all = all[n:]
	}
}

// order is that of the proxies in a round. It alternates, because the first one runs on a machine that has just done
// something else.
func order(round int) []string {
	if round%2 == 1 {
		return []string{ours, upstream}
	}
	return []string{upstream, ours}
}

// sequence describes the order of the measurements.
func (c comparison) sequence() string {
	if c.rounds == 1 {
		return fmt.Sprintf("One round only, %s first", order(0)[0])
	}
	var first []string
	for round := range c.rounds {
		first = append(first, order(round)[0])
	}
	return fmt.Sprintf("Start, changes of one endpoint and memory: mean of %d rounds, first in turn: %s; all else: one round, %s first",
		c.rounds, strings.Join(first, ", "), order(0)[0])
}

// setting is what all comparisons share.
type setting struct {
	cluster  *cluster.Cluster
	control  controlPlane
	objects  *objects
	programs map[string]string
}

func (s *setting) measurement(b *testing.B, c comparison, proxy string) *measurement {
	return &measurement{b: b, comparison: c, cluster: s.cluster, control: s.control, objects: s.objects,
		program: s.programs[proxy], result: &result{}}
}

// warm starts both proxies once before anything is measured in a mode. Otherwise only the first one would wait for
// programs to be read from disk and for kernel modules to be loaded.
func (s *setting) warm(b *testing.B, c comparison) {
	s.objects.grow(b, 2)
	c.services = 2 // it may have more services; these are asked
	for _, proxy := range order(0) {
		m := s.measurement(b, c, proxy)
		m.network = newNetwork(b)
		if err := m.start(); err != nil {
			b.Logf("%s, before it is measured: %v", proxy, err) // a lasting error fails the measurement, too
		}
		m.proxy.stop()
	}
}

// compare measures the proxies in turn, so that noise affects both.
func (s *setting) compare(b *testing.B, c comparison) map[string][]*result {
	results := map[string][]*result{}
	for round := range c.rounds {
		for _, proxy := range order(round) {
			m := s.measurement(b, c, proxy)
			r := m.result
			results[proxy] = append(results[proxy], r)
			b.Run(proxy, func(b *testing.B) {
				m.b, m.brief = b, c.brief || round > 0
				if r.failed = m.run(); r.failed != nil {
					b.Error(r.failed)
				}
				r.report(b)
			})
		}
	}
	demand(b, printTable(os.Stdout, c, s.cluster.Version, results))
	return results
}

// needIPVS skips on kernels without IPVS. testing/vm has kernels with it.
func needIPVS(b *testing.B) {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		b.Skip("the kernel has no IPVS: ", err)
	}
}

// buildExample builds a program of this checkout's examples, as upstream's are built. Without Go, as in a virtual
// machine, KPL_EXAMPLES is a directory with the programs.
func buildExample(b *testing.B, name string) string {
	if built := os.Getenv("KPL_EXAMPLES"); built != "" {
		return filepath.Join(built, name)
	}
	path := filepath.Join(b.TempDir(), name)
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "./examples/"+name)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, string(out))
	return path
}
