package simple

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// ruleset is the desired ruleset of one family.
type ruleset struct {
	family model.Family
	chains map[string]bool
	rules  []string          // each after the name of its chain
	sets   map[string]string // with their definitions
}

// table returns the family and name of the ruleset's table.
func (r *ruleset) table() string { return ipWord(r.family) + " " + simpleTable }

// has reports whether the ruleset has an object.
func (r *ruleset) has(o object) bool {
	if o.kind == "set" {
		return r.sets[o.name] != ""
	}
	return r.chains[o.name]
}

func (r *ruleset) add(chain, format string, args ...any) {
	r.rules = append(r.rules, chain+" "+fmt.Sprintf(format, args...))
}

// render writes the rules for everything in a family.
func (b *Backend) render(f model.Family) *ruleset {
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
		if (b.mutant == forgetsIPv6 || b.mutant == Limited) && f == model.IPv6 || !svc.ClusterIP(f).IsValid() {
			continue
		}
		for i, p := range svc.Ports {
			if (b.mutant == forgetsSCTP || b.mutant == Limited) && p.Protocol == model.SCTP ||
				b.mutant == takesFirstPortOnly && i > 0 {
				continue
			}
			b.renderPort(r, svc, p)
		}
	}
	b.renderUnknown(r)
	b.renderHarm(r)
	r.add("nat_postrouting", "meta mark & %s != 0 masquerade", markMasquerade)
	if b.mutant != ForgetsHairpin {
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

// ipWord is nft's keyword for a family.
func ipWord(f model.Family) string {
	if f == model.IPv6 {
		return "ip6"
	}
	return "ip"
}

// renderPort writes the rules for all addresses of a port.
func (b *Backend) renderPort(r *ruleset, svc *model.Service, p model.ServicePort) {
	f := r.family
	ip, routes := ipWord(f), *p.Routes.At(f)
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
		if b.mutant != forgetsExternalIPs && b.owns(svc, p, a) {
			external(to(a, p.Port))
		}
	}
	for _, a := range ofFamily(svc.LoadBalancerIPs) {
		if b.mutant == forgetsVIPs || !b.owns(svc, p, a) {
			break
		}
		match := to(a, p.Port)
		if b.mutant == mixesRangeFamilies && len(svc.LoadBalancerSourceRanges) > 0 && len(svc.SourceRanges(f)) == 0 {
			r.add("filter_services", "%s drop", match)
		}
		if ranges := svc.SourceRanges(f); len(ranges) > 0 && b.mutant != ForgetsSourceRanges && b.mutant != Limited {
			for _, x := range ranges {
				r.add("filter_services", "%s %s saddr %v meta mark set meta mark | %s", match, ip, x, markAllowed)
			}
			if b.mutant == sinksWhatItRefuses {
				r.add("nat_services", "%s meta mark & %s == 0 dnat to %v", match, markAllowed,
					network.Nth(network.PlanOf(f).Clients, 240))
			} else {
				r.add("filter_services", "%s meta mark & %s == 0 drop", match, markAllowed)
			}
		}
		external(match)
	}
	if p.NodePort == 0 || b.mutant == forgetsNodePorts {
		return
	}
	if b.mutant == closesNodePorts {
		defer r.add("filter_services", "fib daddr type local %s dport %d reject", strings.ToLower(p.Protocol.String()),
			p.NodePort)
	}
	addresses := b.nodePortAddresses()
	if b.mutant == ignoresNodePortAddresses || b.mutant == Limited {
		addresses = slices.Clone(b.env.HostAddresses)
	}
	if b.env.LocalhostNodePorts && b.env.NodePorts.Loopback() || b.mutant == servesLocalhost {
		addresses = append(addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	for _, a := range ofFamily(addresses) {
		asked := p
		asked.Port = p.NodePort
		if _, contested := b.owners[asksFor(asked, a)]; !contested || b.owns(svc, asked, a) {
			external(to(a, p.NodePort))
		}
	}
}

// fromPod returns matches for pods of this node and for all other sources; "" if nothing detects local pods.
func (b *Backend) fromPod(f model.Family) (is, isNot string) {
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

// chain adds a filter and a translation chain for a port. It returns the common part of their names, and whether they
// are new.
func (r *ruleset) chain(key ...any) (name string, fresh bool) {
	h := fnv.New64a()
	fmt.Fprint(h, key...)
	name = fmt.Sprintf("%x", h.Sum64())
	fresh = !r.chains["f_"+name]
	r.chains["f_"+name], r.chains["n_"+name] = true, true
	return name, fresh
}

// externalChain makes the chains for traffic to an external address, which distinguish sources.
func (b *Backend) externalChain(r *ruleset, svc *model.Service, p model.ServicePort, routes model.Routes,
	match string) string {
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
func (b *Backend) routeChain(r *ruleset, svc *model.Service, p model.ServicePort, route model.Route,
	match string) string {
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
	if svc.SessionAffinityTimeout > 0 && b.mutant != IgnoresAffinity && b.mutant != Limited {
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

func (b *Backend) verdict(empty model.Verdict) string {
	switch {
	case b.mutant == acceptsInsteadOfRejects:
		return "accept"
	case b.mutant == dropsInsteadOfRejects, b.mutant == Limited, empty == model.Drop &&
		b.mutant != RejectsInsteadOfDrops:
		return "drop"
	}
	return "reject"
}

func (b *Backend) masquerade(route model.Route) model.Masquerade {
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
func (b *Backend) candidates(svc *model.Service, p model.ServicePort, f model.Family,
	set model.EndpointSets) []*model.Endpoint {
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
			wanted = wanted && ep.Target.Port() == network.ServerPort
		}
		if ep.Port == svc.PortName(p) && ep.Family() == f && wanted {
			list = append(list, ep)
		}
	}
	slices.SortFunc(list, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
	return list
}

// affinitySet returns the name of the set of an endpoint's clients, and adds the set to the ruleset.
func (b *Backend) affinitySet(r *ruleset, svc *model.Service, ep *model.Endpoint, address string) string {
	timeout := svc.SessionAffinityTimeout
	switch b.mutant {
	case neverForgetsClients:
		timeout = time.Hour
	case keepsFirstTimeout:
		key := ep.Key().String() + address
		if b.timeouts[key] == 0 {
			b.timeouts[key] = timeout
		}
		timeout = b.timeouts[key]
	}
	h := fnv.New64a()
	fmt.Fprint(h, ep.Key(), timeout, address)
	name := fmt.Sprintf("aff_%x", h.Sum64())
	kind := map[model.Family]string{model.IPv4: "ipv4_addr", model.IPv6: "ipv6_addr"}[r.family]
	r.sets[name] = fmt.Sprintf("{ type %s; flags dynamic,timeout; timeout %ds; }", kind, int(timeout.Seconds()))
	return name
}

// renderUnknown rejects unknown ports and drops traffic to unallocated addresses (S33).
func (b *Backend) renderUnknown(r *ruleset) {
	for _, name := range slices.SortedFunc(maps.Keys(b.services), model.ServiceName.Compare) {
		if a := b.services[name].ClusterIP(r.family); a.IsValid() && b.mutant != forgetsUnknownPorts &&
			b.mutant != Limited {
			if b.mutant == letsTheNodeAnswer {
				r.add("filter_services", "%s daddr %v accept", ipWord(r.family), a)
				r.add("nat_services", "%s daddr %v fib daddr type != local redirect", ipWord(r.family), a)
				continue
			}
			r.add("filter_services", "%s daddr %v reject", ipWord(r.family), a)
		}
		if h := b.services[name].HealthCheck; h != nil && b.mutant == Limited {
			r.add("filter_services", "tcp dport %d accept", h.NodePort)
		}
		if b.mutant == refusesExternalPorts || b.mutant == Limited {
			for _, a := range slices.Concat(b.services[name].ExternalIPs, b.services[name].LoadBalancerIPs) {
				if model.FamilyOf(a) == r.family && !slices.Contains(b.env.HostAddresses, a) {
					r.add("filter_services", "%s daddr %v reject", ipWord(r.family), a)
				}
			}
		}
	}
	for _, c := range b.node.ServiceCIDRs {
		if model.FamilyOf(c.Addr()) == r.family && b.mutant != forgetsServiceCIDRs && b.mutant != Limited {
			r.add("filter_services", "%s daddr %v drop", ipWord(r.family), c)
		}
	}
}
