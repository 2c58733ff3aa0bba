// Package mynft is the backend that docs/write-a-backend.md builds: the routing table of examples/mock, in nftables. It
// is only an example: each Sync rewrites all rules, and the test lists the features that it lacks.
package mynft

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a sink.Sink for the network namespace in which its methods are called.
type Backend struct {
	*frontend.Table
	nodePortIPs []netip.Addr
	load        func(ctx context.Context, transaction string) error
}

// New returns a backend that serves node ports on these addresses of the node.
func New(nodePortIPs []netip.Addr) (*Backend, error) {
	b := &Backend{nodePortIPs: nodePortIPs, load: nft}
	var err error
	b.Table, err = frontend.New(frontend.Options{Apply: b.apply, NodePortAddresses: b.nodePorts})
	return b, err
}

// nodePorts returns a family's addresses that serve node ports; a service may list them as external IPs (S59).
func (b *Backend) nodePorts(_ *model.Node, f model.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(b.nodePortIPs), func(a netip.Addr) bool { return model.FamilyOf(a) != f })
}

// apply updates the table of one family. A backend for real clusters would write only the changes, c.Ports().
func (b *Backend) apply(ctx context.Context, c *frontend.Changes) error {
	return b.load(ctx, b.ruleset(c))
}

// Cleanup removes everything that the backend ever wrote to the kernel.
func Cleanup(ctx context.Context) error {
	return nft(ctx, "add table ip mynft\ndelete table ip mynft\nadd table ip6 mynft\ndelete table ip6 mynft\n")
}

// Dump returns the backend's rules in the kernel.
func Dump(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "ruleset").Output()
	return string(out), err
}

// nft runs a transaction, which the kernel applies atomically.
func nft(ctx context.Context, transaction string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(transaction)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// frame is a table's base chains. NAT chains see only the first packet of each connection, so existing connections are
// left alone. They come before those of other programs, at -100 and 100 (S67). A mark requests masquerading.
const frame = `
add table FAMILY mynft
add chain FAMILY mynft prerouting { type nat hook prerouting priority -110; }
add chain FAMILY mynft output { type nat hook output priority -110; }
add chain FAMILY mynft postrouting { type nat hook postrouting priority 90; }
add chain FAMILY mynft services
flush table FAMILY mynft
add rule FAMILY mynft prerouting jump services
add rule FAMILY mynft output jump services
add rule FAMILY mynft postrouting meta mark & 0x4000 != 0 masquerade
`

type rules struct {
	bytes.Buffer
	family string // ip or ip6
	pods   model.LocalPods
}

func (r *rules) add(chain string, parts ...string) {
	rule := strings.Fields(strings.Join(parts, " "))
	fmt.Fprintf(r, "add rule %s mynft %s %s\n", r.family, chain, strings.Join(rule, " "))
}

// ruleset returns the complete table of a family.
func (b *Backend) ruleset(c *frontend.Changes) string {
	r := &rules{family: "ip", pods: c.Node().LocalPods}
	if c.Family() == model.IPv6 {
		r.family = "ip6"
	}
	r.WriteString(strings.ReplaceAll(frame, "FAMILY", r.family))
	for p := range c.All().Ports() {
		for fr := range p.Frontends() {
			addresses := []netip.Addr{fr.Addr}
			if fr.IsNodePort() {
				addresses = b.nodePortIPs
			}
			for _, a := range addresses {
				if model.FamilyOf(a) == c.Family() {
					r.frontend(p, fr, a)
				}
			}
		}
	}
	for _, a := range c.All().Hairpins().Added { // a pod that connects to itself through a service
		r.add("postrouting", r.family, "saddr", a.String(), r.family, "daddr", a.String(), "ct status dnat masquerade")
	}
	return r.String()
}

// frontend writes a frontend's rows, like examples/mock: an address and port, a kind of source, and a route.
func (r *rules) frontend(p *frontend.PortChange, fr frontend.Frontend, a netip.Addr) {
	to := fmt.Sprintf("%s daddr %v %v dport %d", r.family, a, strings.ToLower(fr.Protocol.String()), fr.Port)
	if fr.Restricted {
		r.add("services", to, r.family, "saddr != {", join(p.After.SourceRanges), "} drop")
	}
	routes := p.After.RoutesOf(fr.Kind)
	if !routes.Same() {
		if pod := r.source(""); pod != "" {
			r.route(p, to+" "+pod, routes.FromPod)
		}
		r.route(p, to+" fib saddr type local", routes.FromNode)
	}
	r.route(p, to, routes.Other)
}

// route writes the rules of one row. The first rule that matches decides.
func (r *rules) route(p *frontend.PortChange, match string, route model.Route) {
	endpoints := p.Endpoints(route.Endpoints)
	if len(endpoints) == 0 {
		r.add("services", match, strings.ToLower(route.Empty.String())) // reject or drop
		return
	}
	switch route.Masquerade {
	case model.MasqueradeAlways:
		r.add("services", match, "meta mark set meta mark | 0x4000")
	case model.MasqueradeUnlessLocalPod:
		r.add("services", match, r.source("!= "), "meta mark set meta mark | 0x4000")
	}
	for i, ep := range endpoints {
		choice := ""
		if left := len(endpoints) - i; left > 1 {
			choice = fmt.Sprintf("numgen random mod %d 0", left)
		}
		r.add("services", match, choice, "dnat to", ep.Target.String())
	}
}

// source matches pods of this node or, with "!= ", all other sources; it returns "" if nothing detects local pods.
func (r *rules) source(not string) string {
	switch {
	case r.pods.Bridge != "":
		return fmt.Sprintf("iifname %s%q", not, r.pods.Bridge)
	case r.pods.InterfacePrefix != "":
		return fmt.Sprintf("iifname %s\"%s*\"", not, r.pods.InterfacePrefix)
	}
	var ranges []netip.Prefix
	for _, cidr := range r.pods.CIDRs {
		if (r.family == "ip") == cidr.Addr().Is4() {
			ranges = append(ranges, cidr)
		}
	}
	if ranges == nil {
		return ""
	}
	return fmt.Sprintf("%s saddr %s{ %s }", r.family, not, join(ranges))
}

func join(ranges []netip.Prefix) string {
	var texts []string
	for _, x := range ranges {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ", ")
}
