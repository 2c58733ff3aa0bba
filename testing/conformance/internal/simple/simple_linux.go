package simple

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
	"time"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Backend is the simplest complete backend: each Sync rewrites all rules, in one nft transaction. It tests the suite:
// it must pass, and each of its mutants must be caught. These tests spend most of their time in its Syncs, so they
// start few programs.
//
// No transaction replaces a set while packets look things up in it: a packet sees all of the old rules or all of the
// new ones.
type Backend struct {
	env       backend.Env
	mutant    Mutant
	failing   *atomic.Bool // to be rejected by the kernel
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	// cleaned has the endpoints of each family as of the last deletion of stale flows.
	cleaned    map[model.Family]udpTargets
	remembered string // for mutants that remember too much
	synced     bool
	// found: at the first Sync there were rules of an earlier run.
	found bool
	// owners has the service of each external address, port and protocol.
	owners map[string]model.ServiceName
	// timeouts has the first affinity timeout of each set of clients, for a mutant that keeps it.
	timeouts map[string]time.Duration
}

// simpleTable is the name of the table in both families.
const simpleTable = "kpl_simple"

const (
	// Marks on packets between the chains: to be masqueraded; source is in the ranges.
	markMasquerade = "0x4000"
	markAllowed    = "0x1000"
)

// Factory returns the factory of the simple backend, or of a mutant of it.
func Factory(m Mutant) backend.Factory {
	var failing atomic.Bool
	return backend.Factory{
		New: func(ctx context.Context, env backend.Env) (sink.Sink, error) {
			b := &Backend{env: env, mutant: m, failing: &failing, services: map[model.ServiceName]*model.Service{},
				endpoints: map[model.EndpointKey]*model.Endpoint{}, owners: map[string]model.ServiceName{},
				cleaned: map[model.Family]udpTargets{}, timeouts: map[string]time.Duration{}}
			switch m {
			case FlushesOnStart:
				return b, removeTables(ctx)
			case flushesOthers:
				return b, flushIPTables(ctx)
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
		Cleanup: func(ctx context.Context, _ backend.Env) error {
			_ = os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("0"), 0)
			switch m {
			case LeavesATable:
				return nil
			case cleansUpTooMuch:
				return nft(ctx, "flush ruleset")
			}
			return removeTables(ctx)
		},
		Dump: func(ctx context.Context, _ backend.Env) (string, error) {
			path, _ := need.Find("nft")
			out, err := exec.CommandContext(ctx, path, "--stateless", "list", "ruleset").CombinedOutput()
			return string(out), err
		},
		Waives: []string{"a proxy serves node ports on 127.0.0.1 and ::1",
			"a proxy of node ports on loopback addresses keeps to the node with traffic policy Local"},
		Break: func(ctx context.Context, _ backend.Env) error {
			return nft(ctx, "flush chain ip "+simpleTable+" nat_services")
		},
		Fail: func(context.Context, backend.Env) (func() error, error) {
			failing.Store(true)
			return func() error { failing.Store(false); return nil }, nil
		},
	}
}

func removeTables(ctx context.Context) error {
	var commands string
	for _, f := range model.Families() {
		commands += fmt.Sprintf("add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", ipWord(f), simpleTable)
	}
	return nft(ctx, commands)
}

func nft(ctx context.Context, commands string) error {
	path, found := need.Find("nft")
	if !found {
		return errors.New("nft is not installed")
	}
	cmd := exec.CommandContext(ctx, path, "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, stderr.String())
	}
	return nil
}

// SetNode implements [sink.NodeSetter].
func (b *Backend) SetNode(n *model.Node) { b.node = n }

// SetService implements [sink.Sink].
func (b *Backend) SetService(s *model.Service) { b.services[s.Name] = s }

// DeleteService implements [sink.Sink].
func (b *Backend) DeleteService(n model.ServiceName) {
	if b.mutant != neverDeletesServices {
		delete(b.services, n)
	}
	if b.mutant == AppliesAtOnce {
		_ = b.Sync(context.Background())
	}
}

// SetEndpoint implements [sink.Sink].
func (b *Backend) SetEndpoint(e *model.Endpoint) { b.endpoints[e.Key()] = e }

// DeleteEndpoint implements [sink.Sink].
func (b *Backend) DeleteEndpoint(k model.EndpointKey) {
	if b.mutant != KeepsEndpoints {
		delete(b.endpoints, k)
	}
}

// Sync implements [sink.Sink].
func (b *Backend) Sync(ctx context.Context) error {
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
	remembers := b.mutant == ForgetsFailures || b.mutant == trustsItsMemory
	if remembers && text == b.remembered {
		return nil
	}
	if b.mutant == ForgetsFailures {
		b.remembered = text
	}
	if b.mutant == stopsTrafficWhileItApplies {
		for _, f := range b.env.Families {
			if err := stopForwarding(ctx, f); err != nil {
				return err
			}
		}
	}
	if err := b.apply(ctx, wanted); err != nil {
		return err
	}
	b.remembered, b.synced = text, true
	if b.mutant == leavesStaleFlows || b.mutant == Limited {
		return nil
	}
	return b.deleteStaleFlows(ctx)
}

// apply replaces the tables of all families.
func (b *Backend) apply(ctx context.Context, wanted []*ruleset) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	dnat, snat := b.natPriorities()
	for _, r := range wanted {
		line("add table %s", r.table())
		for _, c := range []string{
			"filter_prerouting { type filter hook prerouting priority -110; }",
			"filter_output { type filter hook output priority -110; }",
			fmt.Sprintf("nat_prerouting { type nat hook prerouting priority %d; }", dnat),
			fmt.Sprintf("nat_output { type nat hook output priority %d; }", dnat),
			fmt.Sprintf("nat_postrouting { type nat hook postrouting priority %d; }", snat),
			"filter_services", "nat_services",
		} {
			line("add chain %s %s", r.table(), c)
		}
	}
	if b.mutant == ReloadsWithAGap {
		gap := text.String()
		for _, r := range wanted {
			gap += "flush table " + r.table() + "\n"
		}
		if err := nft(ctx, gap); err != nil {
			return err
		}
	}
	present, err := existing(ctx)
	if err != nil {
		return err
	}
	for _, r := range wanted {
		b.found = b.found || !b.synced && len(present[r.table()]) > 0
	}
	keeps := b.mutant == keepsWhatItFinds && b.found
	for _, r := range wanted {
		table := r.table()
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
		for _, o := range present[table] {
			if !keeps && !r.has(o) {
				line("delete %s %s %s", o.kind, table, o.name)
			}
		}
		if b.failing.Load() {
			line("add rule %s no_such_chain accept", table)
		}
	}
	return nft(ctx, text.String())
}

// natPriorities returns the priorities of the chains of type nat: they come before those of others, at -100 and 100
// (S67).
func (b *Backend) natPriorities() (dnat, snat int) {
	switch b.mutant {
	case ordersByAge, ownsServiceAddresses:
		return -100, 100
	case comesAfterOthers:
		return -90, 110
	}
	return -110, 90
}

// object is a chain or set of a service.
type object struct{ kind, name string }

// listedLine matches the lines in which nft lists a table, or a chain or set of a service in it.
var listedLine = regexp.MustCompile(`(?m)^(?:table (\w+ \w+)|\t(chain|set) ((?:[fn]|aff)_\w+)) {`)

// existing returns the present objects of services by their table, chains before sets.
func existing(ctx context.Context) (map[string][]object, error) {
	path, _ := need.Find("nft")
	out, err := exec.CommandContext(ctx, path, "--terse", "list chains; list sets").Output()
	if err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	list := map[string][]object{}
	table := ""
	for _, m := range listedLine.FindAllStringSubmatch(string(out), -1) {
		if m[1] != "" {
			table = m[1]
			continue
		}
		list[table] = append(list[table], object{m[2], m[3]})
	}
	return list, nil
}

// udpTargets are the endpoints that serve at each UDP address of services.
type udpTargets map[netip.AddrPort][]netip.AddrPort

// deleteStaleFlows deletes UDP flows to service addresses whose endpoint no longer serves there (S40, S41). The kernel
// walks its whole table for that, which takes longer than the rest of a Sync, so this is done only after a change.
func (b *Backend) deleteStaleFlows(ctx context.Context) error {
	if b.mutant == cutsConnections {
		return netlink.ConntrackTableFlush(netlink.ConntrackTable)
	}
	table := conntrack.Kernel{NetNS: int(b.env.NetNS.Fd())}
	for _, f := range b.env.Families {
		serving := b.udpTargets(f)
		if before, known := b.cleaned[f]; known && b.sameTargets(before, serving) {
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

// sameTargets reports whether no flow can have become stale between two states.
func (b *Backend) sameTargets(before, now udpTargets) bool {
	if b.mutant != looksAtEndpointsAlone {
		return maps.EqualFunc(before, now, slices.Equal)
	}
	endpoints := func(t udpTargets) []netip.AddrPort {
		list := slices.Concat(slices.Collect(maps.Values(t))...)
		slices.SortFunc(list, netip.AddrPort.Compare)
		return slices.Compact(list)
	}
	return slices.Equal(endpoints(before), endpoints(now))
}

func (b *Backend) udpTargets(f model.Family) udpTargets {
	nodeAddresses := b.nodePortAddresses()
	if b.mutant == leavesFlowsToNewAddresses {
		nodeAddresses = b.env.NodePortAddresses
	}
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
				set(nodeAddresses, p.NodePort)
			}
		}
	}
	return serving
}
