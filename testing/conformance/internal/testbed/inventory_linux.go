package testbed

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Inventory lists the node's links, addresses, routes, routing rules and nftables, and the output of the factory's
// Dump. It leaves out link-local addresses and their routes, which the kernel adds asynchronously.
func (b *Testbed) Inventory(ctx context.Context) ([]string, error) {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	err := b.Network.Node.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			add("link %s, %s, up %v", l.Attrs().Name, l.Type(), l.Attrs().Flags&net.FlagUp != 0)
			addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if a.IP.IsLinkLocalUnicast() {
					continue
				}
				add("address %v on %s", a.IPNet, l.Attrs().Name)
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Dst != nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast()) {
				continue
			}
			add("route %v", r)
		}
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range rules {
			add("rule %v", r)
		}
		return b.nftInventory(add)
	})
	if err != nil {
		return nil, fmt.Errorf("list what is on the node: %w", err)
	}
	if b.Factory.Dump != nil {
		text, err := b.dumpError(ctx)
		if err != nil {
			return nil, fmt.Errorf("dump: %w", err)
		}
		for line := range strings.Lines(text) {
			// A program's dump covers the whole node. Keep only what is not listed yet and not empty: the rules and chains of
			// legacy iptables.
			if line = strings.TrimRight(line, "\n "); b.Program == nil || strings.HasPrefix(line, "-A ") ||
				strings.HasPrefix(line, ":") && strings.HasSuffix(line, " -") {
				add("dump: %s", line)
			}
		}
	}
	return list, nil
}

// nftInventory lists tables and chains, except the empty ones that the iptables tools create and never remove.
func (b *Testbed) nftInventory(add func(string, ...any)) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil //nolint:nilerr // a kernel without nftables
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return err
		}
		if ofIPTables := strings.ToUpper(c.Name) == c.Name; ofIPTables && len(rules) == 0 && c.Hooknum != nil {
			continue
		}
		used[fmt.Sprint(c.Table.Family, c.Table.Name)] = true
		add("nft chain %v %s %s with %d rules", c.Table.Family, c.Table.Name, c.Name, len(rules))
	}
	for _, t := range tables {
		sets, err := conn.GetSets(t)
		if err != nil {
			return err
		}
		for _, set := range sets {
			add("nft set %v %s %s", t.Family, t.Name, set.Name)
		}
		ofIPTables := slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, t.Name)
		if !ofIPTables || len(sets) > 0 || used[fmt.Sprint(t.Family, t.Name)] {
			add("nft table %v %s", t.Family, t.Name)
		}
	}
	return nil
}

// Difference lists the lines that only one of two inventories has.
func Difference(before, after []string) string {
	var b strings.Builder
	count := map[string]int{}
	for _, line := range before {
		count[line]--
	}
	for _, line := range after {
		count[line]++
	}
	for _, line := range slices.Concat(before, after) {
		switch n := count[line]; {
		case n < 0:
			fmt.Fprintf(&b, "gone: %s\n", line)
		case n > 0:
			fmt.Fprintf(&b, "left: %s\n", line)
		}
		count[line] = 0
	}
	return b.String()
}
