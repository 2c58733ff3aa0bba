package benchmarks

import (
	"errors"
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

// comparison is one shape of a cluster and one mode in which the proxies are compared.
type comparison struct {
	services   int
	endpoints  int // of each service
	mode       mode
	rounds     int           // each proxy is measured so often, in turn; all but the first are brief
	startLimit time.Duration // how long a proxy may take until everything can be reached; upstream's may take longer
	brief      bool          // start, changes of one endpoint and memory only
	atRest     bool          // also what a proxy does when nothing changes, which takes idleFor
}

// shape names what the API server has.
func (c comparison) shape() string { return fmt.Sprintf("%dx%d", c.services, c.endpoints) }

// comparisons are in the order of the number of services, because one cluster grows from one to the next.
func comparisons() []comparison {
	const min = time.Minute
	nftables := mode{name: "nftables", proxyMode: "nftables"}
	iptablesNFT := mode{name: "iptables-nft", proxyMode: "iptables", iptables: "nft"}
	iptablesLegacy := mode{name: "iptables-legacy", proxyMode: "iptables", iptables: "legacy"}
	ipvs := mode{name: "ipvs", proxyMode: "ipvs"} // in a virtual machine, which is slow
	return []comparison{
		{services: 100, endpoints: 10, mode: ipvs, rounds: 1, startLimit: 10 * min, brief: true},
		{services: 1000, endpoints: 10, mode: nftables, rounds: 2, startLimit: min},
		{services: 1000, endpoints: 10, mode: iptablesLegacy, rounds: 1, startLimit: min},
		{services: 1000, endpoints: 10, mode: iptablesNFT, rounds: 1, startLimit: min},
		{services: 1000, endpoints: 10, mode: ipvs, rounds: 1, startLimit: 20 * min, brief: true},
		{services: 5000, endpoints: 10, mode: nftables, rounds: 2, startLimit: 2 * min, atRest: true},
		{services: 5000, endpoints: 10, mode: iptablesLegacy, rounds: 1, startLimit: 2 * min, atRest: true},
		// Upstream's start takes seven minutes, which nobody needs to wait for.
		{services: 5000, endpoints: 10, mode: iptablesNFT, rounds: 1, startLimit: 3 * min, atRest: true},
		{services: 5000, endpoints: 50, mode: nftables, rounds: 1, startLimit: 5 * min, brief: true},
		{services: 10000, endpoints: 10, mode: nftables, rounds: 2, startLimit: 3 * min},
		{services: 10000, endpoints: 10, mode: iptablesLegacy, rounds: 1, startLimit: 3 * min},
		{services: 44000, endpoints: 1, mode: nftables, rounds: 1, startLimit: 5 * min, brief: true},
	}
}

// The names of the two proxies in results.
const (
	upstream = "upstream"
	ours     = "kube-proxy-lib"
)

// BenchmarkSideBySide prints a table for each shape and mode as soon as it is measured, and a row of it for
// docs/benchmarks.md; at last all rows again. The names of its parts are shape/mode/proxy, so that some can be chosen:
//
//	go test -run - -bench SideBySide/5000x10/nftables -benchtime 1x -timeout 1h ./benchmarks
func BenchmarkSideBySide(b *testing.B) {
	need.Root(b)
	programs := map[string]string{upstream: cluster.Program(b, "kube-proxy"), ours: buildExample(b, "kube-proxy")}
	summary := &summary{title: title(cluster.Version(b))}
	summary.printHead(os.Stdout)
	c := cluster.Start(b, cluster.Options{})
	control, err := findControlPlane()
	require.NoError(b, err)
	createNode(b, c.Client)
	objects := &objects{client: c.Client}
	setting := setting{c, control, objects, programs}
	warmed := map[string]bool{}
	defer summary.print(os.Stdout)
	for all := comparisons(); len(all) > 0; {
		n := 1
		for n < len(all) && all[n].shape() == all[0].shape() {
			n++
		}
		b.Run(all[0].shape(), func(b *testing.B) {
			for _, cmp := range all[:n] {
				b.Run(cmp.mode.name, func(b *testing.B) {
					if cmp.mode.proxyMode == "ipvs" {
						needIPVS(b)
					}
					if !warmed[cmp.mode.name] {
						setting.warm(b, cmp)
						warmed[cmp.mode.name] = true
					}
					objects.shape(b, cmp.services, cmp.endpoints)
					summary.add(os.Stdout, cmp, setting.compare(b, cmp))
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
	s.objects.shape(b, 2, c.endpoints)
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
				r.failed = m.run()
				var late *startTooLate
				if errors.As(r.failed, &late) && proxy == upstream { // which is a result
					r.startLimit, r.failed = late.limit, nil
				}
				if r.failed != nil {
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
