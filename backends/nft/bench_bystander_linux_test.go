package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
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

// BenchmarkBystander is a new connection, with one answer, that is no service's. The ways are measured in turn, a few
// connections each time, and the median counts, so that what else the machine does concerns all alike; each in several
// namespaces, for one is by a percent faster than another with the same rules. %-of-conntrack is how much more of the
// processor it takes than with nothing but the kernel's connection tracking, which has to be for any NAT.
func BenchmarkBystander(b *testing.B) {
	c := backendtest.Sizes(10, 10000)[0]
	load := func(rules string) func() error {
		nft := need.Program(b, "nft")
		return func() error {
			cmd := exec.CommandContext(b.Context(), nft, "-f", "-")
			cmd.Stdin = strings.NewReader(rules)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		}
	}
	ways := []*bystander{
		{name: "none", set: func() error { return nil }},
		{name: "conntrack", set: load(bareRules)},
		{name: "ours", set: func() error {
			backend := newBackend(b, nft.Options{})
			c.Set(backend)
			node := c.Node()
			node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")} // which upstream's rules have, too
			backend.SetNode(node)
			return errors.Join(backend.Sync(b.Context()), backend.Close())
		}},
		{name: "upstream", set: load(upstreamRules(c))},
	}
	const namespaces, flows = 4, 20
	for range namespaces {
		for _, w := range ways {
			ns := testkit.NewNamespace(b)
			ns.Do(func() error {
				w.flows = append(w.flows, backendtest.NewFlows(b, ns.Handle()))
				return w.set()
			})
			w.ns = append(w.ns, ns)
		}
	}
	watch := backendtest.NewStopwatch(b)
	runtime.GC() // what was described is garbage now, and no flow's
	for b.Loop() {
		for i := range namespaces {
			for _, w := range ways {
				before := watch.Total
				w.ns[i].Do(func() error {
					watch.Time(func() {
						for range flows {
							w.n++
							if !w.flows[i].Flow(w.n, w.flows[i].EndpointAddr(1+w.n%12)) {
								b.Error("no answer")
							}
						}
					})
					return nil
				})
				w.costs = append(w.costs, watch.Total-before)
			}
		}
	}
	base := ways[1].median()
	for _, w := range ways {
		b.ReportMetric(w.median()/flows, w.name+"-cpu-ns/flow")
		b.ReportMetric(100*(w.median()-base)/base, w.name+"-%-of-conntrack")
	}
	b.ReportMetric(0, "cpu-ns/op")
}

// bystander is one of the ways in which connections are made.
type bystander struct {
	name  string
	set   func() error
	ns    []*testkit.Namespace
	flows []*backendtest.Flows
	n     int
	costs []time.Duration
}

func (w *bystander) median() float64 {
	slices.Sort(w.costs)
	return float64(w.costs[len(w.costs)/2])
}
