package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// simple is the simplest complete backend: each Sync rewrites all rules, in one nft transaction per family. It tests
// the suite: it must pass, and each of its mutants must be caught.
//
// No transaction replaces a set while packets look things up in it: a packet sees all of the old rules or all of the
// new ones.
type simple struct {
	env       Env
	mutant    mutant
	failing   *atomic.Bool // to be rejected by the kernel
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	// udpChanged: UDP flows may have become stale since the last Sync.
	udpChanged bool
	remembered string // for mutants that remember too much
	synced     bool
	// found: at the first Sync there were rules of an earlier run.
	found bool
	// owners has the service of each external address, port and protocol.
	owners map[string]model.ServiceName
}

// simpleTable is the name of the table in both families.
const simpleTable = "kpl_simple"

const (
	// Marks on packets between the chains: to be masqueraded; source is in the ranges.
	markMasquerade = "0x4000"
	markAllowed    = "0x1000"
)

// simpleFactory returns the factory of the simple backend, or of a mutant of it.
func simpleFactory(m mutant) Factory {
	var failing atomic.Bool
	return Factory{
		New: func(_ context.Context, env Env) (sink.Sink, error) {
			b := &simple{env: env, mutant: m, failing: &failing, services: map[model.ServiceName]*model.Service{},
				endpoints: map[model.EndpointKey]*model.Endpoint{}, owners: map[string]model.ServiceName{}}
			switch m {
			case flushesOnStart:
				return b, removeTables()
			case forgetsIdleConnections:
				return b, forgetIdleConnections()
			case ownsServiceAddresses:
				return b, ownClusterIPs()
			}
			if env.LocalhostNodePorts {
				return b, os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0)
			}
			return b, nil
		},
		Cleanup: func(context.Context, Env) error {
			_ = os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("0"), 0)
			switch m {
			case leavesATable:
				return nil
			case cleansUpTooMuch:
				return nft("flush ruleset")
			}
			return removeTables()
		},
		Dump: func(ctx context.Context, _ Env) (string, error) {
			path, _ := need.Find("nft")
			out, err := exec.CommandContext(ctx, path, "--stateless", "list", "ruleset").CombinedOutput()
			return string(out), err
		},
		Waives: []string{"a proxy serves node ports on 127.0.0.1 and ::1",
			"a proxy of node ports on loopback addresses keeps to the node with traffic policy Local"},
		Break: func(context.Context, Env) error { return nft("flush chain ip " + simpleTable + " nat_services") },
		Fail: func(context.Context, Env) (func() error, error) {
			failing.Store(true)
			return func() error { failing.Store(false); return nil }, nil
		},
	}
}

func removeTables() error {
	var commands string
	for _, f := range model.Families() {
		commands += fmt.Sprintf("add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", ipWord(f), simpleTable)
	}
	return nft(commands)
}

func nft(commands string) error {
	path, found := need.Find("nft")
	if !found {
		return errors.New("nft is not installed")
	}
	cmd := exec.Command(path, "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, stderr.String())
	}
	return nil
}

func (b *simple) SetNode(n *model.Node) { b.node = n }

func (b *simple) SetService(s *model.Service) {
	b.services[s.Name] = s
	b.udpChanged = true
}

func (b *simple) DeleteService(n model.ServiceName) {
	b.udpChanged = true
	if b.mutant != neverDeletesServices {
		delete(b.services, n)
	}
	if b.mutant == appliesAtOnce {
		_ = b.Sync(context.Background())
	}
}

func (b *simple) SetEndpoint(e *model.Endpoint) {
	b.endpoints[e.Key()] = e
	b.udpChanged = b.udpChanged || e.Port.Protocol == model.UDP
}

func (b *simple) DeleteEndpoint(k model.EndpointKey) {
	b.udpChanged = b.udpChanged || k.Port.Protocol == model.UDP
	if b.mutant != keepsEndpoints {
		delete(b.endpoints, k)
	}
}

func (b *simple) Sync(ctx context.Context) error {
	if err := b.lookAtHost(); err != nil {
		return err
	}
	b.settleOwners()
	var wanted []*ruleset
	var text string
	for _, f := range b.env.Families {
		r := b.render(f)
		wanted = append(wanted, r)
		text += strings.Join(r.rules, "\n")
	}
	remembers := b.mutant == forgetsFailures || b.mutant == trustsItsMemory
	if remembers && text == b.remembered {
		return nil
	}
	if b.mutant == forgetsFailures {
		b.remembered = text
	}
	for _, r := range wanted {
		if b.mutant == stopsTrafficWhileItApplies {
			if err := stopForwarding(r.family); err != nil {
				return err
			}
		}
		if err := b.apply(ctx, r); err != nil {
			return err
		}
	}
	b.remembered, b.synced = text, true
	if !b.udpChanged || b.mutant == leavesStaleFlows || b.mutant == limited {
		return nil
	}
	if err := b.deleteStaleFlows(); err != nil {
		return err
	}
	b.udpChanged = false
	return nil
}

// apply replaces the table of a family.
func (b *simple) apply(ctx context.Context, r *ruleset) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table := ipWord(r.family) + " " + simpleTable
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("add table %s", table)
	for _, c := range []string{
		"filter_prerouting { type filter hook prerouting priority -110; }",
		"filter_output { type filter hook output priority -110; }",
		"nat_prerouting { type nat hook prerouting priority -100; }",
		"nat_output { type nat hook output priority -100; }",
		"nat_postrouting { type nat hook postrouting priority 100; }", "filter_services", "nat_services",
	} {
		line("add chain %s %s", table, c)
	}
	if b.mutant == reloadsWithAGap {
		if err := nft(text.String() + "flush table " + table); err != nil {
			return err
		}
	}
	chains, sets := existing(table)
	b.found = b.found || !b.synced && len(chains) > 0
	keeps := b.mutant == keepsWhatItFinds && b.found
	if !keeps {
		line("flush table %s", table)
	}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		line("add chain %s %s", table, name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		line("add set %s %s %s", table, name, r.sets[name])
	}
	for _, rule := range r.rules {
		line("add rule %s %s", table, rule)
	}
	if !keeps {
		for _, name := range chains {
			if !r.chains[name] {
				line("delete chain %s %s", table, name)
			}
		}
		for _, name := range sets {
			if _, wanted := r.sets[name]; !wanted {
				line("delete set %s %s", table, name)
			}
		}
	}
	if b.failing.Load() {
		line("add rule %s no_such_chain accept", table)
	}
	return nft(text.String())
}

var (
	chainName = regexp.MustCompile(`chain ([fn]_\w+) {`)
	setName   = regexp.MustCompile(`set (aff_\w+) {`)
)

// existing returns the names of the present chains and sets of services.
func existing(table string) (chains, sets []string) {
	path, _ := need.Find("nft")
	out, err := exec.Command(path, append([]string{"--terse", "list", "table"}, strings.Fields(table)...)...).Output()
	if err != nil {
		return nil, nil // there is no table yet
	}
	for _, m := range chainName.FindAllStringSubmatch(string(out), -1) {
		chains = append(chains, m[1])
	}
	for _, m := range setName.FindAllStringSubmatch(string(out), -1) {
		sets = append(sets, m[1])
	}
	return chains, sets
}

// deleteStaleFlows deletes UDP flows to service addresses whose endpoint no longer serves there (S40, S41).
func (b *simple) deleteStaleFlows() error {
	serving := map[netip.AddrPort][]netip.AddrPort{}
	for _, svc := range b.services {
		for _, p := range svc.Ports {
			if p.Protocol != model.UDP {
				continue
			}
			var targets []netip.AddrPort
			for _, ep := range b.endpoints {
				if ep.Port == svc.PortName(p) && ep.Serving {
					targets = append(targets, ep.Target)
				}
			}
			for _, a := range slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs) {
				serving[netip.AddrPortFrom(a, p.Port)] = targets
			}
			for _, a := range b.env.NodePortAddresses {
				if p.NodePort != 0 {
					serving[netip.AddrPortFrom(a, p.NodePort)] = targets
				}
			}
		}
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		stale := staleFlows(func(flow *netlink.ConntrackFlow) bool {
			switch {
			case b.mutant == cutsConnections, b.mutant == cutsAllFlows && flow.Forward.Protocol == unix.IPPROTO_UDP:
				return true
			case flow.Forward.Protocol != unix.IPPROTO_UDP:
				return false
			}
			to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
			from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
			original := netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort)
			replier := netip.AddrPortFrom(from.Unmap(), flow.Reverse.SrcPort)
			targets, ours := serving[original]
			translated := original != replier
			return (ours || translated) && !slices.Contains(targets, replier)
		})
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale); err != nil &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete stale flows: %w", err)
		}
	}
	return nil
}

type staleFlows func(*netlink.ConntrackFlow) bool

func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool { return s(flow) }
