package simple

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// renderHarm writes the rules of mutants that harm traffic which is not, or no longer, for a service.
func (b *Backend) renderHarm(r *ruleset) {
	ip, plan := ipWord(r.family), network.PlanOf(r.family)
	icmp := func(four, six string) string {
		if r.family == model.IPv6 {
			return "icmpv6 type " + six
		}
		return "icmp type destination-unreachable icmp code " + four
	}
	both := func(format string, args ...any) {
		for _, hook := range []string{"filter_prerouting", "filter_output"} {
			r.add(hook, format, args...)
		}
	}
	switch b.mutant {
	case cutsTransfers:
		both("ct status dnat meta l4proto tcp ct original bytes > 65536 drop")
	case losesHalfClose:
		both("ct status dnat ct direction original tcp flags & (fin | rst) == fin reject with tcp reset")
	case swallowsResets:
		both("ct status dnat tcp flags & rst == rst drop")
	case cutsDatagrams:
		both("ct direction original udp length > %d drop", 8+512)
	case losesFragments:
		both("ct direction original udp length > %d drop", 8+1472)
	case swallowsPathErrors:
		both("%s drop", icmp("frag-needed", "packet-too-big"))
	case swallowsRefusals:
		both("ct status dnat %s drop", icmp("port-unreachable", "destination-unreachable"))
	case breaksHighPorts:
		both("ct status ! dnat %s daddr %v tcp sport > 61000 reject with tcp reset", ip, plan.AllPods)
	case masqueradesStrangers:
		r.add("nat_postrouting", "ct status ! dnat %s saddr %v %[1]s daddr %v masquerade", ip, plan.LocalPods,
			plan.Clients)
	}
}

// stopForwarding stops forwarding until the family's next transaction.
func stopForwarding(ctx context.Context, f model.Family) error {
	return nft(ctx, fmt.Sprintf("add table %[1]s %[2]s\nadd chain %[1]s %[2]s filter_prerouting "+
		"{ type filter hook prerouting priority -110; }\ninsert rule %[1]s %[2]s filter_prerouting drop",
		ipWord(f), simpleTable))
}

// flushIPTables removes the rules that others have in table nat of iptables-nft.
func flushIPTables(ctx context.Context) error {
	var commands string
	for _, f := range model.Families() {
		commands += fmt.Sprintf("add table %[1]s nat\nflush table %[1]s nat\n", ipWord(f))
	}
	return nft(ctx, commands)
}

// forgetIdleConnections makes connection tracking forget connections that were idle for a second, and ignore
// connections whose start it has not seen.
func forgetIdleConnections() error {
	var errs []error
	for name, value := range map[string]string{"tcp_timeout_established": "1", "tcp_loose": "0"} {
		errs = append(errs, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+name, []byte(value), 0))
	}
	return errors.Join(errs...)
}

// ownClusterIPs makes all cluster IPs the node's own.
func ownClusterIPs() error {
	var errs []error
	for _, f := range model.Families() {
		p := network.ClusterIPs(f)
		errs = append(errs, netlink.RouteReplace(&netlink.Route{LinkIndex: 1, Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}))
	}
	return errors.Join(errs...)
}

// lookAtHost finds addresses that were added to the host or removed.
func (b *Backend) lookAtHost() error {
	if b.mutant == ignoresHostAddresses || b.mutant == Limited {
		return nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	var now []netip.Addr
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && l.Flags&net.FlagLoopback == 0 && !prefix.Addr().IsLinkLocalUnicast() {
				now = append(now, prefix.Addr())
			}
		}
	}
	if b.mutant == keepsHostAddresses {
		now = append(now, b.env.HostAddresses...)
	}
	b.env.HostAddresses = now
	return nil
}

// nodePortAddresses are those that serve node ports (S35).
func (b *Backend) nodePortAddresses() []netip.Addr {
	return slices.DeleteFunc(b.env.NodePorts.Of(b.env.HostAddresses, b.node).IPs, netip.Addr.IsLoopback)
}

// asksFor is an external address, port and protocol that a service claims.
func asksFor(p model.ServicePort, a netip.Addr) string { return fmt.Sprint(a, p.Port, p.Protocol) }

// owns reports whether a service owns an external address that it claims.
func (b *Backend) owns(svc *model.Service, p model.ServicePort, a netip.Addr) bool {
	return b.owners[asksFor(p, a)] == svc.Name
}

// settleOwners determines the owners of the external addresses (S59).
func (b *Backend) settleOwners() {
	type claim struct {
		*model.Service
		kind int // VIPs come first, then external IPs
	}
	claims := map[string][]claim{}
	add := func(p model.ServicePort, a netip.Addr, c claim) {
		claims[asksFor(p, a)] = append(claims[asksFor(p, a)], c)
	}
	for _, svc := range b.services {
		for _, p := range svc.Ports {
			for _, a := range svc.LoadBalancerIPs {
				add(p, a, claim{svc, 0})
			}
			for _, a := range svc.ExternalIPs {
				add(p, a, claim{svc, 1})
			}
			if p.Port = p.NodePort; p.Port != 0 && b.mutant != putsNodePortsLast {
				for _, a := range b.nodePortAddresses() {
					add(p, a, claim{svc, 2})
				}
			}
		}
	}
	for key, list := range claims {
		owner := b.owners[key]
		if b.mutant != firstNameOwns && slices.ContainsFunc(list, func(c claim) bool { return c.Name == owner }) &&
			(b.mutant != youngestOwns || len(list) == 1) {
			continue
		}
		b.owners[key] = slices.MinFunc(list, func(x, y claim) int {
			byName := strings.Compare(x.Name.Name, y.Name.Name)
			switch b.mutant {
			case firstNameOwns:
				return byName
			case youngestOwns:
				return y.Created.Compare(x.Created)
			}
			return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.kind, y.kind), byName)
		}).Name
	}
	for key := range b.owners {
		if claims[key] == nil {
			delete(b.owners, key)
		}
	}
}
