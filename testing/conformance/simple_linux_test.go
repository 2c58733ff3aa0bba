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

	"sigs.k8s.io/kube-proxy-lib/conntrack"
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
	// cleaned has what served in each family when stale flows were deleted last.
	cleaned    map[model.Family]udpTargets
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
				endpoints: map[model.EndpointKey]*model.Endpoint{}, owners: map[string]model.ServiceName{},
				cleaned: map[model.Family]udpTargets{}}
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

func (b *simple) SetService(s *model.Service) { b.services[s.Name] = s }

func (b *simple) DeleteService(n model.ServiceName) {
	if b.mutant != neverDeletesServices {
		delete(b.services, n)
	}
	if b.mutant == appliesAtOnce {
		_ = b.Sync(context.Background())
	}
}

func (b *simple) SetEndpoint(e *model.Endpoint) { b.endpoints[e.Key()] = e }

func (b *simple) DeleteEndpoint(k model.EndpointKey) {
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
	if b.mutant == leavesStaleFlows || b.mutant == limited {
		return nil
	}
	return b.deleteStaleFlows(ctx)
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

// udpTargets are the endpoints that serve at each UDP address of services.
type udpTargets map[netip.AddrPort][]netip.AddrPort

// deleteStaleFlows deletes UDP flows to service addresses whose endpoint no longer serves there (S40, S41). The kernel
// walks its whole table for that, which takes longer than all the rest of a Sync, so it is asked only after a change.
func (b *simple) deleteStaleFlows(ctx context.Context) error {
	if b.mutant == cutsConnections {
		return netlink.ConntrackTableFlush(netlink.ConntrackTable)
	}
	table := conntrack.Kernel{NetNS: int(b.env.NetNS.Fd())}
	for _, f := range b.env.Families {
		serving := b.udpTargets(f)
		if before, known := b.cleaned[f]; known && maps.EqualFunc(before, serving, slices.Equal) {
			continue
		}
		_, err := table.DeleteUDP(ctx, f, nil, func(flow conntrack.Flow) bool {
			if b.mutant == cutsAllFlows {
				return true
			}
			targets, ours := serving[flow.Destination]
			translated := flow.Destination != flow.ReplySource
			return (ours || translated) && !slices.Contains(targets, flow.ReplySource)
		})
		if err != nil {
			return fmt.Errorf("delete stale flows: %w", err)
		}
		b.cleaned[f] = serving
	}
	return nil
}

func (b *simple) udpTargets(f model.Family) udpTargets {
	serving := udpTargets{}
	for _, svc := range b.services {
		for _, p := range svc.Ports {
			if p.Protocol != model.UDP {
				continue
			}
			var targets []netip.AddrPort
			for _, ep := range b.endpoints {
				if ep.Port == svc.PortName(p) && ep.Serving && ep.Family() == f {
					targets = append(targets, ep.Target)
				}
			}
			slices.SortFunc(targets, netip.AddrPort.Compare)
			set := func(addresses []netip.Addr, port uint16) {
				for _, a := range addresses {
					if model.FamilyOf(a) == f {
						serving[netip.AddrPortFrom(a, port)] = targets
					}
				}
			}
			set(slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs), p.Port)
			if p.NodePort != 0 {
				set(b.env.NodePortAddresses, p.NodePort)
			}
		}
	}
	return serving
}
