package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
)

// simple is the simplest complete backend that there can be: each Sync writes all rules anew, in one nft transaction. It is
// here so that the suite can be judged: it must pass, and each of its mutants must be caught.
//
// There are no lookups in sets that a transaction replaces, nor chains that it adds: a packet sees all of the old rules or
// all of the new ones.
type simple struct {
	env       Env
	mutant    mutant
	failing   *atomic.Bool // to be rejected by the kernel
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	// udpChanged: UDP flows may have become stale since the last Sync.
	udpChanged bool
	remembered string // of mutants that remember too much
	synced     bool
}

const (
	simpleTable = "inet kpl_simple"
	// Marks on packets between the chains: to be masqueraded; source is in the ranges.
	markMasquerade = "0x4000"
	markAllowed    = "0x1000"
)

// simpleFactory returns the factory of the simple backend, or of a mutant of it.
func simpleFactory(m mutant) Factory {
	var failing atomic.Bool
	return Factory{
		New: func(_ context.Context, env Env) (sink.Sink, error) {
			b := &simple{env: env, mutant: m, failing: &failing, services: map[model.ServiceName]*model.Service{}, endpoints: map[model.EndpointKey]*model.Endpoint{}}
			if m == flushesOnStart {
				return b, nft("add table " + simpleTable + "\ndelete table " + simpleTable)
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
			return nft("add table " + simpleTable + "\ndelete table " + simpleTable)
		},
		Dump: func(context.Context, Env) (string, error) {
			out, err := exec.Command("nft", "--stateless", "list", "ruleset").Output()
			return string(out), err
		},
		Break: func(context.Context, Env) error { return nft("flush chain " + simpleTable + " nat_services") },
		Fail: func(context.Context, Env) (func() error, error) {
			failing.Store(true)
			return func() error { failing.Store(false); return nil }, nil
		},
	}
}

func nft(commands string) error {
	cmd := exec.Command("nft", "-f", "-")
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
	b.early()
}

func (b *simple) DeleteService(n model.ServiceName) {
	b.udpChanged = true
	if b.mutant != neverDeletesServices {
		delete(b.services, n)
	}
}

func (b *simple) SetEndpoint(e *model.Endpoint) {
	b.endpoints[e.Key()] = e
	b.udpChanged = b.udpChanged || e.Port.Protocol == model.UDP
	b.early()
}

func (b *simple) DeleteEndpoint(k model.EndpointKey) {
	b.udpChanged = b.udpChanged || k.Port.Protocol == model.UDP
	if b.mutant != keepsEndpoints {
		delete(b.endpoints, k)
	}
}

// early applies what has been described before Sync asks for it, in the mutant that does so.
func (b *simple) early() {
	if b.mutant == appliesAtOnce {
		_ = b.Sync(context.Background())
	}
}

func (b *simple) Sync(ctx context.Context) error {
	text := ""
	if b.mutant == forgetsFailures || b.mutant == trustsItsMemory {
		text = strings.Join(b.render().rules, "\n")
		if text == b.remembered {
			return nil
		}
	}
	if b.mutant == forgetsFailures {
		b.remembered = text
	}
	if err := b.apply(ctx); err != nil {
		return err
	}
	b.remembered = text
	return nil
}

func (b *simple) apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := b.render()
	old, err := existingSets()
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "add table %s\n", simpleTable)
	for _, c := range []string{
		"filter_prerouting { type filter hook prerouting priority -110; }", "filter_output { type filter hook output priority -110; }",
		"nat_prerouting { type nat hook prerouting priority -100; }", "nat_output { type nat hook output priority -100; }",
		"nat_postrouting { type nat hook postrouting priority 100; }", "filter_services", "nat_services",
	} {
		fmt.Fprintf(&text, "add chain %s %s\n", simpleTable, c)
	}
	if b.mutant == reloadsWithAGap {
		if err := nft(text.String() + "flush table " + simpleTable); err != nil {
			return err
		}
	}
	if b.mutant != keepsWhatItFinds || b.synced {
		fmt.Fprintf(&text, "flush table %s\n", simpleTable)
	}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		fmt.Fprintf(&text, "add set %s %s %s\n", simpleTable, name, r.sets[name])
	}
	for _, rule := range r.rules {
		fmt.Fprintf(&text, "add rule %s %s\n", simpleTable, rule)
	}
	for _, name := range old {
		if _, ok := r.sets[name]; !ok {
			fmt.Fprintf(&text, "delete set %s %s\n", simpleTable, name)
		}
	}
	if b.failing.Load() {
		fmt.Fprintf(&text, "add rule %s no_such_chain accept\n", simpleTable)
	}
	if err := nft(text.String()); err != nil {
		return err
	}
	b.synced = true
	if !b.udpChanged || b.mutant == leavesStaleFlows {
		return nil
	}
	if err := b.deleteStaleFlows(); err != nil {
		return err
	}
	b.udpChanged = false
	return nil
}

var setName = regexp.MustCompile(`set (aff_\w+) {`)

// existingSets returns the names of the sets that are in the table.
func existingSets() ([]string, error) {
	out, err := exec.Command("nft", "--stateless", "list", "sets").Output()
	if err != nil {
		return nil, fmt.Errorf("nft list sets: %w", err)
	}
	var names []string
	for _, m := range setName.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	return names, nil
}

// ruleset is what render makes: rules, each after the name of its chain, and the sets that they use.
type ruleset struct {
	rules []string
	sets  map[string]string
}

func (r *ruleset) add(chain, format string, args ...any) {
	r.rules = append(r.rules, chain+" "+fmt.Sprintf(format, args...))
}

// render writes the rules for everything.
func (b *simple) render() *ruleset {
	r := &ruleset{sets: map[string]string{}}
	for _, hook := range []string{"prerouting", "output"} {
		connections := "ct state new "
		if b.mutant == refusesEstablished {
			connections = ""
		}
		r.add("filter_"+hook, "%sjump filter_services", connections)
		r.add("nat_"+hook, "jump nat_services")
	}
	for _, name := range slices.SortedFunc(maps.Keys(b.services), model.ServiceName.Compare) {
		svc := b.services[name]
		for _, f := range b.env.Families {
			if b.mutant == forgetsIPv6 && f == model.IPv6 || !svc.ClusterIP(f).IsValid() {
				continue
			}
			for i, p := range svc.Ports {
				if b.mutant == forgetsSCTP && p.Protocol == model.SCTP || b.mutant == takesFirstPortOnly && i > 0 {
					continue
				}
				b.renderPort(r, svc, p, f)
			}
		}
	}
	b.renderUnknown(r)
	r.add("nat_postrouting", "meta mark & %s != 0 masquerade", markMasquerade)
	if b.mutant != forgetsHairpin {
		hairpin := map[netip.Addr]bool{}
		for _, ep := range b.endpoints {
			hairpin[ep.Target.Addr()] = true
		}
		for _, a := range slices.SortedFunc(maps.Keys(hairpin), netip.Addr.Compare) {
			r.add("nat_postrouting", "%[1]s saddr %[2]v %[1]s daddr %[2]v ct status dnat masquerade", ipWord(model.FamilyOf(a)), a)
		}
	}
	return r
}

// ipWord is what nft calls a family's header.
func ipWord(f model.Family) string {
	if f == model.IPv6 {
		return "ip6"
	}
	return "ip"
}

// renderPort writes the rules for all addresses of a port.
func (b *simple) renderPort(r *ruleset, svc *model.Service, p model.ServicePort, f model.Family) {
	ip, routes := ipWord(f), p.Routes(f)
	protocol := strings.ToLower(p.Protocol.String())
	to := func(a netip.Addr, port uint16) string {
		if b.mutant == mixesProtocols {
			return fmt.Sprintf("%s daddr %v meta l4proto { tcp, udp, sctp } th dport %d", ip, a, port)
		}
		return fmt.Sprintf("%s daddr %v %s dport %d", ip, a, protocol, port)
	}
	b.renderRoute(r, svc, p, f, to(svc.ClusterIP(f), p.Port), "", routes.ClusterIP)

	external := func(match string) {
		pod, notPod := b.fromPod(f)
		if pod != "" {
			route := routes.ExternalFromPod
			if b.mutant == forgetsPodShortCircuit {
				route = routes.External
			}
			b.renderRoute(r, svc, p, f, match, pod, route)
		}
		node := routes.ExternalFromNode
		if b.mutant == forgetsNodeShortCircuit {
			node = routes.External
		}
		b.renderRoute(r, svc, p, f, match, strings.TrimSpace(notPod+" fib saddr type local"), node)
		b.renderRoute(r, svc, p, f, match, strings.TrimSpace(notPod+" fib saddr type != local"), routes.External)
	}
	ofFamily := func(list []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return model.FamilyOf(a) != f })
	}
	if b.mutant != forgetsExternalIPs {
		for _, a := range ofFamily(svc.ExternalIPs) {
			external(to(a, p.Port))
		}
	}
	for _, a := range ofFamily(svc.LoadBalancerIPs) {
		if b.mutant == forgetsVIPs {
			break
		}
		match := to(a, p.Port)
		if b.mutant == mixesRangeFamilies && len(svc.LoadBalancerSourceRanges) > 0 && len(svc.SourceRanges(f)) == 0 {
			r.add("filter_services", "%s drop", match)
		}
		if ranges := svc.SourceRanges(f); len(ranges) > 0 && b.mutant != forgetsSourceRanges {
			for _, x := range ranges {
				r.add("filter_services", "%s %s saddr %v meta mark set meta mark | %s", match, ip, x, markAllowed)
			}
			r.add("filter_services", "%s meta mark & %s == 0 drop", match, markAllowed)
		}
		external(match)
	}
	if p.NodePort == 0 || b.mutant == forgetsNodePorts {
		return
	}
	addresses := slices.Clone(b.env.NodePortAddresses)
	if b.mutant == ignoresNodePortAddresses {
		addresses = b.env.HostAddresses
	}
	if b.env.LocalhostNodePorts || b.mutant == servesLocalhost {
		addresses = append(addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	for _, a := range ofFamily(addresses) {
		external(to(a, p.NodePort))
	}
}

// fromPod returns matches for sources that are pods of this node, and for those that are not; "" if nobody can tell.
func (b *simple) fromPod(f model.Family) (is, isNot string) {
	d := b.node.LocalPods
	switch {
	case !d.Detects(f):
		return "", ""
	case d.Bridge != "":
		return fmt.Sprintf("iifname %q", d.Bridge), fmt.Sprintf("iifname != %q", d.Bridge)
	case d.InterfacePrefix != "":
		return fmt.Sprintf("iifname \"%s*\"", d.InterfacePrefix), fmt.Sprintf("iifname != \"%s*\"", d.InterfacePrefix)
	}
	for _, c := range d.CIDRs {
		if model.FamilyOf(c.Addr()) == f {
			return fmt.Sprintf("%s saddr %v", ipWord(f), c), fmt.Sprintf("%s saddr != %v", ipWord(f), c)
		}
	}
	return "", ""
}

// renderRoute writes the rules for one kind of traffic to one address.
func (b *simple) renderRoute(r *ruleset, svc *model.Service, p model.ServicePort, f model.Family, match, source string, route model.Route) {
	if route.IsZero() {
		return
	}
	match = strings.TrimSpace(match + " " + source)
	endpoints := b.candidates(svc, p, f, route.Endpoints)
	if len(endpoints) == 0 {
		verdict := "reject"
		if route.Empty == model.Drop {
			verdict = "drop"
		}
		switch b.mutant {
		case dropsInsteadOfRejects:
			verdict = "drop"
		case rejectsInsteadOfDrops:
			verdict = "reject"
		case acceptsInsteadOfRejects:
			verdict = "accept"
		}
		r.add("filter_services", "%s %s", match, verdict)
		return
	}
	masquerade := route.Masquerade
	switch b.mutant {
	case masqueradesAlways:
		masquerade = model.MasqueradeAlways
	case masqueradesNever:
		masquerade = model.MasqueradeNever
	case sparesPodsAlways:
		if masquerade == model.MasqueradeAlways {
			masquerade = model.MasqueradeUnlessLocalPod
		}
	}
	switch masquerade {
	case model.MasqueradeAlways:
		r.add("filter_services", "%s meta mark set meta mark | %s", match, markMasquerade)
	case model.MasqueradeUnlessLocalPod:
		_, notPod := b.fromPod(f)
		if b.mutant == ignoresDetector {
			notPod = ""
		}
		r.add("filter_services", "%s %s meta mark set meta mark | %s", match, notPod, markMasquerade)
	}
	r.add("filter_services", "%s accept", match)

	dnat := func(ep *model.Endpoint) string { return fmt.Sprintf("dnat %s to %v", ipWord(f), ep.Target) }
	remember := func(*model.Endpoint) string { return "" }
	if svc.SessionAffinityTimeout > 0 && b.mutant != ignoresAffinity {
		remember = func(ep *model.Endpoint) string {
			return fmt.Sprintf("update @%s { %s saddr } ", affinitySet(r, svc, ep, match, b.mutant), ipWord(f))
		}
		for _, ep := range endpoints {
			r.add("nat_services", "%s %s saddr @%s %s%s", match, ipWord(f), affinitySet(r, svc, ep, match, b.mutant), remember(ep), dnat(ep))
		}
	}
	for i, ep := range endpoints {
		share := len(endpoints) - i
		if b.mutant == balancesBadly && share > 1 {
			share++
		}
		if share == 1 {
			r.add("nat_services", "%s %s%s", match, remember(ep), dnat(ep))
		} else {
			r.add("nat_services", "%s numgen random mod %d 0 %s%s", match, share, remember(ep), dnat(ep))
		}
	}
}

// candidates are the endpoints of a set, in order.
func (b *simple) candidates(svc *model.Service, p model.ServicePort, f model.Family, set model.EndpointSets) []*model.Endpoint {
	if b.mutant == ignoresLocalPolicy {
		set = model.ClusterSet
	}
	var list []*model.Endpoint
	for _, ep := range b.endpoints {
		wanted := ep.Sets.Has(set)
		switch b.mutant {
		case takesAnyEndpoint:
			wanted = true
		case takesReadyOnly:
			wanted = wanted && ep.Ready
		case takesOneTargetPort:
			wanted = wanted && ep.Target.Port() == serverPort
		}
		if ep.Port == svc.PortName(p) && ep.Family() == f && wanted {
			list = append(list, ep)
		}
	}
	slices.SortFunc(list, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	return list
}

// affinitySet names the set of the clients of an endpoint, and has it made.
func affinitySet(r *ruleset, svc *model.Service, ep *model.Endpoint, match string, m mutant) string {
	timeout := svc.SessionAffinityTimeout
	if m == neverForgetsClients {
		timeout = 3600e9
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %v", ep.Key(), timeout)
	if m == affinityPerAddress {
		fmt.Fprint(h, match)
	}
	name := fmt.Sprintf("aff_%x", h.Sum64())
	kind := "ipv4_addr"
	if ep.Family() == model.IPv6 {
		kind = "ipv6_addr"
	}
	r.sets[name] = fmt.Sprintf("{ type %s; flags dynamic,timeout; timeout %ds; }", kind, int(timeout.Seconds()))
	return name
}

// renderUnknown guards what is next to the services (S33).
func (b *simple) renderUnknown(r *ruleset) {
	for _, name := range slices.SortedFunc(maps.Keys(b.services), model.ServiceName.Compare) {
		for _, a := range b.services[name].ClusterIPs {
			if slices.Contains(b.env.Families, model.FamilyOf(a)) && b.mutant != forgetsUnknownPorts {
				r.add("filter_services", "%s daddr %v meta l4proto { tcp, udp, sctp } reject", ipWord(model.FamilyOf(a)), a)
			}
		}
	}
	for _, c := range b.node.ServiceCIDRs {
		if b.mutant != forgetsServiceCIDRs {
			r.add("filter_services", "%s daddr %v drop", ipWord(model.FamilyOf(c.Addr())), c)
		}
	}
}

// deleteStaleFlows deletes UDP flows to service addresses that go to what does not serve there (S40, S41).
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
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete stale flows: %w", err)
		}
	}
	return nil
}

type staleFlows func(*netlink.ConntrackFlow) bool

func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool { return s(flow) }
