package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// cleanupLeavesNothing compares the node before the backend starts with the node after its clean-up. Foreign objects
// that exist from the start must stay.
func cleanupLeavesNothing(ctx context.Context, b *bed) error {
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	removeForeign, err := b.addForeign()
	if err != nil {
		return fmt.Errorf("add things of others: %w", err)
	}
	defer removeForeign()
	before, err := b.Inventory(ctx)
	if err != nil {
		return err
	}
	if err := b.Start(ctx, b.Setup); err != nil {
		return err
	}
	for _, st := range []step{firstStep(), secondStep()} {
		if err := b.step(ctx, st); err != nil {
			return err
		}
	}
	if err := b.Cleanup(ctx); err != nil {
		return err
	}
	after, err := b.Inventory(ctx)
	if err != nil {
		return err
	}
	if diff := testbed.Difference(before, after); diff != "" {
		return fmt.Errorf("the node after clean-up is not the node before the backend:\n%s", diff)
	}
	// A second clean-up is not an error.
	if err := b.Cleanup(ctx); err != nil {
		return fmt.Errorf("for the second time: %w", err)
	}
	return b.Start(ctx, b.Setup)
}

const (
	foreignLink  = "kpl-foreign"
	foreignTable = "kpl_foreign"
)

// addForeign adds a foreign link, route and table to the node.
func (b *bed) addForeign() (remove func(), err error) {
	var undo []func() error
	remove = func() {
		_ = b.Network.Node.Do(func() error {
			var errs []error
			for _, u := range slices.Backward(undo) {
				errs = append(errs, u())
			}
			return errors.Join(errs...)
		})
	}
	err = b.Network.Node.Do(func() error {
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
