package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cleanupLeavesNothing compares the node before the backend starts with the node after its clean-up. Foreign objects
// that exist from the start must stay.
func cleanupLeavesNothing(ctx context.Context, b *testbed) error {
	if err := b.cleanup(ctx); err != nil {
		return err
	}
	removeForeign, err := b.addForeign()
	if err != nil {
		return fmt.Errorf("add things of others: %w", err)
	}
	defer removeForeign()
	before, err := b.inventory(ctx)
	if err != nil {
		return err
	}
	if err := b.start(ctx, b.setup); err != nil {
		return err
	}
	for _, st := range []step{firstStep(), secondStep()} {
		if err := b.step(ctx, st); err != nil {
			return err
		}
	}
	if err := b.cleanup(ctx); err != nil {
		return err
	}
	after, err := b.inventory(ctx)
	if err != nil {
		return err
	}
	if diff := difference(before, after); diff != "" {
		return fmt.Errorf("the node after clean-up is not the node before the backend:\n%s", diff)
	}
	// A second clean-up is not an error.
	if err := b.cleanup(ctx); err != nil {
		return fmt.Errorf("for the second time: %w", err)
	}
	return b.start(ctx, b.setup)
}

const (
	foreignLink  = "kpl-foreign"
	foreignTable = "kpl_foreign"
)

// addForeign adds a foreign link, route and table to the node.
func (b *testbed) addForeign() (remove func(), err error) {
	var undo []func() error
	remove = func() {
		_ = b.n.Node.Do(func() error {
			var errs []error
			for _, u := range slices.Backward(undo) {
				errs = append(errs, u())
			}
			return errors.Join(errs...)
		})
	}
	err = b.n.Node.Do(func() error {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: foreignLink}}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		undo = append(undo, func() error { return netlink.LinkDel(link) })
		addr, err := netlink.ParseAddr("172.30.9.1/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Name: foreignTable, Family: nftables.TableFamilyINet})
		chain := conn.AddChain(&nftables.Chain{Name: "c", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
		if err := conn.Flush(); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
				return nil // a kernel without nftables
			}
			return err
		}
		undo = append(undo, func() error {
			conn.DelTable(table)
			return conn.Flush()
		})
		return nil
	})
	if err != nil {
		remove()
		return nil, err
	}
	return remove, nil
}

// inventory lists the node's links, addresses, routes, routing rules and nftables, and the output of the factory's
// Dump. It leaves out link-local addresses and their routes, which the kernel adds asynchronously.
func (b *testbed) inventory(ctx context.Context) ([]string, error) {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	err := b.n.Node.Do(func() error {
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
	if b.factory.Dump != nil {
		text, err := b.dumpError(ctx)
		if err != nil {
			return nil, fmt.Errorf("dump: %w", err)
		}
		for line := range strings.Lines(text) {
			// A program's dump covers the whole node. Keep only what is not listed yet and not empty: the rules and chains of
			// legacy iptables.
			if line = strings.TrimRight(line, "\n "); b.program == nil || strings.HasPrefix(line, "-A ") ||
				strings.HasPrefix(line, ":") && strings.HasSuffix(line, " -") {
				add("dump: %s", line)
			}
		}
	}
	return list, nil
}

// nftInventory lists tables and chains, except the empty ones that the iptables tools create and never remove.
func (b *testbed) nftInventory(add func(string, ...any)) error {
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

// difference lists the lines that only one of two inventories has.
func difference(before, after []string) string {
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
