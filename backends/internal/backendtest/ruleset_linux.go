package backendtest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Ruleset returns the rules of nftables in the network namespace of this thread, for messages: as nft lists them, or,
// where that program is missing, the names of tables, chains and sets, and how many rules a chain has.
func Ruleset(ctx context.Context) (string, error) {
	if nft, found := need.Find("nft"); found {
		out, err := exec.CommandContext(ctx, nft, "--stateless", "list", "ruleset").CombinedOutput()
		return string(out), err
	}
	return names()
}

// names lists what netlink can tell without rendering rules.
func names() (string, error) {
	conn, err := nftables.New()
	if err != nil {
		return "", err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return "", fmt.Errorf("list tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return "", fmt.Errorf("list chains: %w", err)
	}
	var text strings.Builder
	for _, table := range tables {
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
			nftables.TableFamilyINet: "inet"}[table.Family]
		fmt.Fprintf(&text, "table %s %s { # install nftables to see the rules\n", family, table.Name)
		sets, err := conn.GetSets(table)
		if err != nil {
			return "", fmt.Errorf("list sets of %s: %w", table.Name, err)
		}
		for _, set := range sets {
			fmt.Fprintf(&text, "\tset %s\n", set.Name)
		}
		for _, chain := range chains {
			if chain.Table.Name != table.Name || chain.Table.Family != table.Family {
				continue
			}
			rules, err := conn.GetRules(table, chain)
			if err != nil {
				return "", fmt.Errorf("list rules of %s %s: %w", table.Name, chain.Name, err)
			}
			fmt.Fprintf(&text, "\tchain %s # %d rules\n", chain.Name, len(rules))
		}
		text.WriteString("}\n")
	}
	return text.String(), nil
}
