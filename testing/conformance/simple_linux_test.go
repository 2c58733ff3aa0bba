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
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// simple is the simplest complete backend that there can be: each Sync writes all rules anew, in one nft transaction for each
// family. It is here so that the suite can be judged: it must pass, and each of its mutants must be caught.
//
// There are no lookups in sets that a transaction replaces: a packet sees all of the old rules or all of the new ones.
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
			b := &simple{env: env, mutant: m, failing: &failing, services: map[model.ServiceName]*model.Service{}, endpoints: map[model.EndpointKey]*model.Endpoint{}}
			if m == flushesOnStart {
				return b, removeTables()
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
		Dump: func(context.Context, Env) (string, error) {
			out, err := exec.Command("nft", "--stateless", "list", "ruleset").Output()
			return string(out), err
		},
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

// ruleset is what there is to be in one family.
type ruleset struct {
	family model.Family
	chains map[string]bool
	rules  []string          // each after the name of its chain
	sets   map[string]string // with their definitions
}

func (r *ruleset) add(chain, format string, args ...any) {
	r.rules = append(r.rules, chain+" "+fmt.Sprintf(format, args...))
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
		"filter_prerouting { type filter hook prerouting priority -110; }", "filter_output { type filter hook output priority -110; }",
		"nat_prerouting { type nat hook prerouting priority -100; }", "nat_output { type nat hook output priority -100; }",
		"nat_postrouting { type nat hook postrouting priority 100; }", "filter_services", "nat_services",
	} {
		line("add chain %s %s", table, c)
	}
	if b.mutant == reloadsWithAGap {
		if err := nft(text.String() + "flush table " + table); err != nil {
			return err
		}
	}
	if b.mutant != keepsWhatItFinds || b.synced {
		line("flush table %s", table)
	}
	chains, sets := existing(table)
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		line("add chain %s %s", table, name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		line("add set %s %s %s", table, name, r.sets[name])
	}
	for _, rule := range r.rules {
		line("add rule %s %s", table, rule)
	}
	if b.mutant != keepsWhatItFinds || b.synced {
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

// existing returns the names of the chains and sets that come and go, as they are now.
func existing(table string) (chains, sets []string) {
	out, err := exec.Command("nft", append([]string{"--terse", "list", "table"}, strings.Fields(table)...)...).Output()
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

// render writes the rules for everything in a family.
func (b *simple) render(f model.Family) *ruleset {
	r := &ruleset{family: f, chains: map[string]bool{}, sets: map[string]string{}}
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
		if (b.mutant == forgetsIPv6 || b.mutant == limited) && f == model.IPv6 || !svc.ClusterIP(f).IsValid() {
			continue
		}
		for i, p := range svc.Ports {
			if (b.mutant == forgetsSCTP || b.mutant == limited) && p.Protocol == model.SCTP || b.mutant == takesFirstPortOnly && i > 0 {
				continue
			}
			b.renderPort(r, svc, p)
		}
	}
	b.renderUnknown(r)
	r.add("nat_postrouting", "meta mark & %s != 0 masquerade", markMasquerade)
	if b.mutant != forgetsHairpin {
		hairpin := map[netip.Addr]bool{}
		for _, ep := range b.endpoints {
			if ep.Family() == f {
				hairpin[ep.Target.Addr()] = true
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(hairpin), netip.Addr.Compare) {
			r.add("nat_postrouting", "%[1]s saddr %[2]v %[1]s daddr %[2]v ct status dnat masquerade", ipWord(f), a)
		}
	}
	return r
}

// ipWord is what nft calls a family.
func ipWord(f model.Family) string {
	if f == model.IPv6 {
		return "ip6"
	}
	return "ip"
}

// renderPort writes the rules for all addresses of a port.
func (b *simple) renderPort(r *ruleset, svc *model.Service, p model.ServicePort) {
	f := r.family
	ip, routes := ipWord(f), p.Routes(f)
	to := func(a netip.Addr, port uint16) string {
		if b.mutant == mixesProtocols {
			return fmt.Sprintf("%s daddr %v meta l4proto { tcp, udp, sctp } th dport %d", ip, a, port)
		}
		return fmt.Sprintf("%s daddr %v %s dport %d", ip, a, strings.ToLower(p.Protocol.String()), port)
	}
	send := func(match, target string) {
		r.add("filter_services", "%s goto f_%s", match, target)
		r.add("nat_services", "%s goto n_%s", match, target)
	}
	match := to(svc.ClusterIP(f), p.Port)
	send(match, b.routeChain(r, svc, p, routes.ClusterIP, match))
	if routes.External.IsZero() {
		return
	}
	external := func(match string) { send(match, b.externalChain(r, svc, p, routes, match)) }
	ofFamily := func(list []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return model.FamilyOf(a) != f })
	}
	for _, a := range ofFamily(svc.ExternalIPs) {
		if b.mutant != forgetsExternalIPs {
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
		if ranges := svc.SourceRanges(f); len(ranges) > 0 && b.mutant != forgetsSourceRanges && b.mutant != limited {
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
	if b.mutant == closesNodePorts {
		defer r.add("filter_services", "fib daddr type local %s dport %d reject", strings.ToLower(p.Protocol.String()), p.NodePort)
	}
	addresses := slices.Clone(b.env.NodePortAddresses)
	if b.mutant == ignoresNodePortAddresses || b.mutant == limited {
		addresses = slices.Clone(b.env.HostAddresses)
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

// chain makes a pair of chains for a port, one to filter and one to translate, and returns what their names have in common,
// and whether they are new.
func (r *ruleset) chain(key ...any) (name string, fresh bool) {
	h := fnv.New64a()
	fmt.Fprint(h, key...)
	name = fmt.Sprintf("%x", h.Sum64())
	fresh = !r.chains["f_"+name]
	r.chains["f_"+name], r.chains["n_"+name] = true, true
	return name, fresh
}

// externalChain makes the chains for traffic to an external address, which tell the sources apart.
func (b *simple) externalChain(r *ruleset, svc *model.Service, p model.ServicePort, routes model.Routes, match string) string {
	switch b.mutant {
	case forgetsPodShortCircuit:
		routes.ExternalFromPod = routes.External
	case forgetsNodeShortCircuit:
		routes.ExternalFromNode = routes.External
	}
	if routes.ExternalFromPod == routes.External && routes.ExternalFromNode == routes.External {
		return b.routeChain(r, svc, p, routes.External, match)
	}
	name, fresh := r.chain("external", svc.PortName(p))
	if !fresh {
		return name
	}
	send := func(match string, route model.Route) {
		target := b.routeChain(r, svc, p, route, match)
		r.add("f_"+name, "%s goto f_%s", match, target)
		r.add("n_"+name, "%s goto n_%s", match, target)
	}
	if pod, _ := b.fromPod(r.family); pod != "" {
		send(pod, routes.ExternalFromPod)
	}
	send("fib saddr type local", routes.ExternalFromNode)
	send("", routes.External)
	return name
}

// routeChain makes the chains for one kind of traffic to a port.
func (b *simple) routeChain(r *ruleset, svc *model.Service, p model.ServicePort, route model.Route, match string) string {
	key := []any{"route", svc.PortName(p), route}
	if b.mutant == affinityPerAddress {
		key = append(key, match)
	}
	name, fresh := r.chain(key...)
	if !fresh {
		return name
	}
	endpoints := b.candidates(svc, p, r.family, route.Endpoints)
	if len(endpoints) == 0 {
		r.add("f_"+name, "%s", b.verdict(route.Empty))
		return name
	}
	switch b.masquerade(route) {
	case model.MasqueradeAlways:
		r.add("f_"+name, "meta mark set meta mark | %s", markMasquerade)
	case model.MasqueradeUnlessLocalPod:
		_, notPod := b.fromPod(r.family)
		if b.mutant == ignoresDetector {
			notPod = ""
		}
		r.add("f_"+name, "%s meta mark set meta mark | %s", notPod, markMasquerade)
	}
	r.add("f_"+name, "accept")

	ip := ipWord(r.family)
	transport := "meta l4proto " + strings.ToLower(p.Protocol.String())
	if b.mutant == mixesProtocols {
		transport = "meta l4proto { tcp, udp, sctp }"
	}
	remember := func(*model.Endpoint) string { return "" }
	if svc.SessionAffinityTimeout > 0 && b.mutant != ignoresAffinity && b.mutant != limited {
		set := func(ep *model.Endpoint) string {
			if b.mutant == affinityPerAddress {
				return b.affinitySet(r, svc, ep, match)
			}
			return b.affinitySet(r, svc, ep, "")
		}
		remember = func(ep *model.Endpoint) string { return fmt.Sprintf("update @%s { %s saddr } ", set(ep), ip) }
		for _, ep := range endpoints {
			r.add("n_"+name, "%s %s saddr @%s %sdnat to %v", transport, ip, set(ep), remember(ep), ep.Target)
		}
	}
	for i, ep := range endpoints {
		choice := ""
		if share := len(endpoints) - i; share > 1 {
			if b.mutant == balancesBadly {
				share++
			}
			choice = fmt.Sprintf("numgen random mod %d 0 ", share)
		}
		r.add("n_"+name, "%s %s%sdnat to %v", transport, choice, remember(ep), ep.Target)
	}
	return name
}

func (b *simple) verdict(empty model.Verdict) string {
	switch {
	case b.mutant == acceptsInsteadOfRejects:
		return "accept"
	case b.mutant == dropsInsteadOfRejects, b.mutant == limited, empty == model.Drop && b.mutant != rejectsInsteadOfDrops:
		return "drop"
	}
	return "reject"
}

func (b *simple) masquerade(route model.Route) model.Masquerade {
	switch b.mutant {
	case masqueradesAlways:
		return model.MasqueradeAlways
	case masqueradesNever:
		return model.MasqueradeNever
	case sparesPodsAlways:
		if route.Masquerade == model.MasqueradeAlways {
			return model.MasqueradeUnlessLocalPod
		}
	}
	return route.Masquerade
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
func (b *simple) affinitySet(r *ruleset, svc *model.Service, ep *model.Endpoint, address string) string {
	timeout := svc.SessionAffinityTimeout
	if b.mutant == neverForgetsClients {
		timeout = time.Hour
	}
	h := fnv.New64a()
	fmt.Fprint(h, ep.Key(), timeout, address)
	name := fmt.Sprintf("aff_%x", h.Sum64())
	kind := map[model.Family]string{model.IPv4: "ipv4_addr", model.IPv6: "ipv6_addr"}[r.family]
	r.sets[name] = fmt.Sprintf("{ type %s; flags dynamic,timeout; timeout %ds; }", kind, int(timeout.Seconds()))
	return name
}

// renderUnknown guards what is next to the services (S33).
func (b *simple) renderUnknown(r *ruleset) {
	for _, name := range slices.SortedFunc(maps.Keys(b.services), model.ServiceName.Compare) {
		if a := b.services[name].ClusterIP(r.family); a.IsValid() && b.mutant != forgetsUnknownPorts && b.mutant != limited {
			r.add("filter_services", "%s daddr %v reject", ipWord(r.family), a)
		}
	}
	for _, c := range b.node.ServiceCIDRs {
		if model.FamilyOf(c.Addr()) == r.family && b.mutant != forgetsServiceCIDRs && b.mutant != limited {
			r.add("filter_services", "%s daddr %v drop", ipWord(r.family), c)
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
