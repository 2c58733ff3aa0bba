// Package mynft is the backend that docs/write-a-backend.md builds: the routing table of examples/mock, in nftables. It shows
// the way and is no more than that: it writes all rules anew in each Sync, and lacks what its test lists.
package mynft

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a sink.Sink for the network namespace that it is called in.
type Backend struct {
	nodePortIPs []netip.Addr

	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
}

// New returns a backend that serves node ports on some addresses of the node.
func New(nodePortIPs []netip.Addr) *Backend {
	return &Backend{
		nodePortIPs: nodePortIPs,
		services:    map[model.ServiceName]*model.Service{},
		endpoints:   map[model.EndpointKey]*model.Endpoint{},
	}
}

func (b *Backend) SetNode(n *model.Node)              { b.node = n }
func (b *Backend) SetService(s *model.Service)        { b.services[s.Name] = s }
func (b *Backend) DeleteService(n model.ServiceName)  { delete(b.services, n) }
func (b *Backend) SetEndpoint(e *model.Endpoint)      { b.endpoints[e.Key()] = e }
func (b *Backend) DeleteEndpoint(k model.EndpointKey) { delete(b.endpoints, k) }
func (b *Backend) Sync(ctx context.Context) error     { return nft(ctx, b.ruleset()) }

// Cleanup removes all that the backend has ever put into the kernel.
func Cleanup(ctx context.Context) error {
	return nft(ctx, "add table inet mynft\ndelete table inet mynft\n")
}

// Dump returns what is in the kernel.
func Dump(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "ruleset").Output()
	return string(out), err
}

// nft runs a transaction: all of it comes into force at one moment, or nothing.
func nft(ctx context.Context, transaction string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(transaction)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// The frame of the table. NAT chains see the first packet of each connection only, so that connections that stand are left
// alone. A mark says that the source is to be rewritten on the way out.
const frame = `
add table inet mynft
add chain inet mynft prerouting { type nat hook prerouting priority -100; }
add chain inet mynft output { type nat hook output priority -100; }
add chain inet mynft postrouting { type nat hook postrouting priority 100; }
add chain inet mynft services
flush table inet mynft
add rule inet mynft prerouting jump services
add rule inet mynft output jump services
add rule inet mynft postrouting meta mark & 0x4000 != 0 masquerade
`

// rules collects the rules of the chain of services.
type rules struct{ bytes.Buffer }

func (r *rules) add(chain string, parts ...string) {
	rule := strings.Fields(strings.Join(parts, " "))
	fmt.Fprintf(r, "add rule inet mynft %s %s\n", chain, strings.Join(rule, " "))
}

// ruleset writes the whole table.
func (b *Backend) ruleset() string {
	r := &rules{}
	r.WriteString(frame)
	for _, name := range slices.SortedFunc(maps.Keys(b.services), model.ServiceName.Compare) {
		s := b.services[name]
		for _, p := range s.Ports {
			for _, f := range model.Families() {
				b.port(r, s, p, f)
			}
		}
	}
	for _, target := range b.localTargets() { // a pod that reaches itself
		ip := ipWord(model.FamilyOf(target))
		r.add("postrouting", ip, "saddr", target.String(), ip, "daddr", target.String(), "ct status dnat masquerade")
	}
	return r.String()
}

// port writes the rows of a port, as examples/mock does: a destination, a kind of source, and what happens.
func (b *Backend) port(r *rules, s *model.Service, p model.ServicePort, f model.Family) {
	routes := p.Routes(f)
	to := func(ip netip.Addr, port uint16) string {
		return fmt.Sprintf("%s daddr %v %v dport %d", ipWord(f), ip, strings.ToLower(p.Protocol.String()), port)
	}
	add := func(ip netip.Addr, port uint16, from string, route model.Route) {
		b.route(r, to(ip, port)+" "+from, s.PortName(p), f, route)
	}
	if ip := s.ClusterIP(f); ip.IsValid() {
		add(ip, p.Port, "", routes.ClusterIP)
	}
	external := func(ip netip.Addr, port uint16) {
		if pod := b.localPod(f); pod != "" {
			add(ip, port, pod, routes.ExternalFromPod)
		}
		add(ip, port, "fib saddr type local", routes.ExternalFromNode)
		add(ip, port, "", routes.External)
	}
	for _, ip := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
		if model.FamilyOf(ip) != f {
			continue
		}
		if ranges := s.SourceRanges(f); len(ranges) > 0 && slices.Contains(s.LoadBalancerIPs, ip) {
			r.add("services", to(ip, p.Port), ipWord(f), "saddr != {", join(ranges), "} drop")
		}
		external(ip, p.Port)
	}
	for _, ip := range b.nodePortIPs {
		if model.FamilyOf(ip) == f && p.NodePort != 0 && s.ClusterIP(f).IsValid() {
			external(ip, p.NodePort)
		}
	}
}

// route writes the rules of one row. Rules are tried in order, and the first that decides is the last.
func (b *Backend) route(r *rules, match string, port model.PortName, f model.Family, route model.Route) {
	var targets []netip.AddrPort
	for _, e := range b.endpoints {
		if e.Port == port && e.Family() == f && e.Sets.Has(route.Endpoints) {
			targets = append(targets, e.Target)
		}
	}
	if len(targets) == 0 {
		r.add("services", match, strings.ToLower(route.Empty.String())) // reject or drop
		return
	}
	switch route.Masquerade {
	case model.MasqueradeAlways:
		r.add("services", match, "meta mark set meta mark | 0x4000")
	case model.MasqueradeUnlessLocalPod:
		r.add("services", match, b.notLocalPod(f), "meta mark set meta mark | 0x4000")
	}
	slices.SortFunc(targets, model.CompareTargets)
	for i, target := range targets {
		choice := ""
		if left := len(targets) - i; left > 1 {
			choice = fmt.Sprintf("numgen random mod %d 0", left)
		}
		r.add("services", match, choice, "dnat", ipWord(f), "to", target.String())
	}
}

// localPod matches sources that are pods of this node, "" where nothing tells them apart; notLocalPod matches the others.
func (b *Backend) localPod(f model.Family) string    { return b.source(f, "") }
func (b *Backend) notLocalPod(f model.Family) string { return b.source(f, "!= ") }

func (b *Backend) source(f model.Family, not string) string {
	d := b.node.LocalPods
	switch {
	case d.Bridge != "":
		return fmt.Sprintf("iifname %s%q", not, d.Bridge)
	case d.InterfacePrefix != "":
		return fmt.Sprintf("iifname %s\"%s*\"", not, d.InterfacePrefix)
	}
	for _, cidr := range d.CIDRs {
		if model.FamilyOf(cidr.Addr()) == f {
			return fmt.Sprintf("%s saddr %s%v", ipWord(f), not, cidr)
		}
	}
	return ""
}

// localTargets returns the addresses of the endpoints on this node.
func (b *Backend) localTargets() []netip.Addr {
	targets := map[netip.Addr]bool{}
	for _, e := range b.endpoints {
		if e.Local {
			targets[e.Target.Addr()] = true
		}
	}
	return slices.SortedFunc(maps.Keys(targets), netip.Addr.Compare)
}

func join(ranges []netip.Prefix) string {
	var texts []string
	for _, x := range ranges {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ", ")
}

func ipWord(f model.Family) string {
	if f == model.IPv6 {
		return "ip6"
	}
	return "ip"
}
