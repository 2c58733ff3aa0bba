package cases

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// iptablesProgram returns the name of a program, for example ip6tables-nft.
func iptablesProgram(variant string, f model.Family) string {
	if f == model.IPv6 {
		return "ip6tables-" + variant
	}
	return "iptables-" + variant
}

// iptablesVariants returns the variants of iptables that are installed, for both families.
func iptablesVariants() []string {
	return slices.DeleteFunc([]string{"nft", "legacy"}, func(variant string) bool {
		for _, f := range model.Families() {
			for _, suffix := range []string{"", "-save", "-restore"} {
				if _, found := need.Find(iptablesProgram(variant, f) + suffix); !found {
					return true
				}
			}
		}
		return false
	})
}

// iptablesInUse returns the variant of iptables that has rules on the node: other programs of a node use the same one.
// If neither has any, it is nft. The calling thread is in the node's network namespace.
func iptablesInUse(ctx context.Context, families []model.Family) (string, error) {
	variants := iptablesVariants()
	switch len(variants) {
	case 0:
		return "", exec.ErrNotFound
	case 1:
		return variants[0], nil
	}
	for _, f := range families {
		// Without a table's name it shows those that exist, and creates none.
		program, _ := need.Find(iptablesProgram("legacy", f) + "-save")
		out, err := exec.CommandContext(ctx, program).Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w", program, err)
		}
		if strings.Contains(string(out), "\n-A ") {
			return "legacy", nil
		}
	}
	return "nft", nil
}

// runIPTables runs a program of iptables with an input.
func runIPTables(ctx context.Context, name, input string, args ...string) error {
	program, found := need.Find(name)
	if !found {
		return fmt.Errorf("%s: %w", name, exec.ErrNotFound)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

func nftFamily(f model.Family) nftables.TableFamily {
	if f == model.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// dropUnusedNAT removes the table nat of iptables-nft if it has nothing but empty built-in chains. These stay when all
// rules have gone; then rules that are added later would count as registered when the first one was.
func dropUnusedNAT(f model.Family) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := conn.ListChainsOfTableFamily(nftFamily(f))
	if err != nil {
		return nil //nolint:nilerr // a kernel without nftables
	}
	var table *nftables.Table
	for _, c := range chains {
		if c.Table.Name != "nat" {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return err
		}
		if len(rules) > 0 || c.Hooknum == nil {
			return nil
		}
		table = c.Table
	}
	if table == nil {
		return nil
	}
	conn.DelTable(table)
	return conn.Flush()
}
