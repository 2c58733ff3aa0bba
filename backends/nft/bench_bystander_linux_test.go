package nft_test

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// bareRules have the kernel track connections, and ask nobody about them. Chains for NAT alone do not make it track:
// there has to be a rule that can use what it tracks, though no packet meets it.
const bareRules = `table ip bare {
	chain unused { ct state new accept; }
	chain prerouting { type nat hook prerouting priority dstnat; }
	chain output { type nat hook output priority -100; }
	chain postrouting { type nat hook postrouting priority srcnat; }
}
`

// upstreamRules are what a packet meets in upstream kube-proxy's table, in its order; what happens to traffic of
// services is left out.
func upstreamRules(c backendtest.ClusterSize) string {
	var ips, verdicts strings.Builder
	for i := range c.Services {
		fmt.Fprintf(&ips, "%v, ", c.Service(i).ClusterIPs[0])
		fmt.Fprintf(&verdicts, "%v . tcp . 80 : goto service, ", c.Service(i).ClusterIPs[0])
	}
	return `table ip upstream {
	set cluster-ips { type ipv4_addr; elements = { ` + ips.String() + `} }
	set nodeport-ips { type ipv4_addr; elements = { 192.0.2.1 } }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { ` + verdicts.String() + `} }
	chain service { accept; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; ip daddr 10.96.0.0/12 drop; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-output-pre-dnat {
		type filter hook output priority -110;
		ct state new jump service-endpoints-check
		ct state new jump firewall-check
	}
	chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }
	chain filter-input {
		type filter hook input priority 0;
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority 0;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
`
}

// BenchmarkBystander is a new connection, with one answer, that is no service's. Each of the ways is measured in turn,
// so that what else the machine does concerns all alike. %-of-conntrack is how much more of the processor it takes than
// with nothing but the kernel's connection tracking, which has to be for any NAT.
func BenchmarkBystander(b *testing.B) {
	c := backendtest.Sizes(10, 10000)[0]
	load := func(rules string) func() error {
		return func() error {
			cmd := exec.CommandContext(b.Context(), need.Program(b, "nft"), "-f", "-")
			cmd.Stdin = strings.NewReader(rules)
			out, err := cmd.CombinedOutput()
			require.NoError(b, err, "%s", out)
			return nil
		}
	}
	ways := []*bystander{
		{name: "none", set: func() error { return nil }},
		{name: "conntrack", set: load(bareRules)},
		{name: "ours", set: func() error {
			backend := newBackend(b, nft.Options{})
			c.Describe(backend)
			return errors.Join(backend.Sync(b.Context()), backend.Close())
		}},
		{name: "upstream", set: load(upstreamRules(c))},
	}
	for _, w := range ways {
		w.ns = testns.New(b)
		w.ns.Do(func() error {
			w.flows = backendtest.NewFlows(b, w.ns.Handle())
			return w.set()
		})
		w.watch = backendtest.NewStopwatch(b)
	}
	runtime.GC() // what was described is garbage now, and no flow's
	const flows = 500
	for b.Loop() {
		for _, w := range ways {
			w.ns.Do(func() error {
				w.watch.Time(func() {
					for range flows {
						w.n++
						if !w.flows.Flow(w.n, w.flows.EndpointAddr(1+w.n%12)) {
							b.Error("no answer")
						}
					}
				})
				return nil
			})
		}
	}
	base := float64(ways[1].watch.Total)
	for _, w := range ways {
		b.ReportMetric(float64(w.watch.Total.Nanoseconds())/float64(w.watch.N)/flows, w.name+"-cpu-ns/flow")
		b.ReportMetric(100*(float64(w.watch.Total)-base)/base, w.name+"-%-of-conntrack")
	}
	b.ReportMetric(0, "cpu-ns/op")
}

// bystander is one of the ways in which connections are made.
type bystander struct {
	name  string
	set   func() error
	ns    *testns.Namespace
	flows *backendtest.Flows
	watch *backendtest.Stopwatch
	n     int
}
