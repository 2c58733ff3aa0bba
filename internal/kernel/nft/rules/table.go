package rules

import (
	"context"
	"errors"
	"syscall"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
)

// IsCompatible reports whether a table can be corrected instead of replaced: it has the comment, and those of the
// chains and sets that it has are of the wanted definition.
func IsCompatible(t *dp.Table, comment string, chains []Chain, sets []*dp.Set) bool {
	for i := range chains {
		have, want := t.Chains[chains[i].Name], &chains[i]
		if have != nil && (have.Hook != want.Hook || have.Priority != want.Priority || have.Filter != want.Filter) {
			return false
		}
	}
	for _, want := range sets {
		if have := t.Sets[want.Name]; have != nil && !have.Matches(want) {
			return false
		}
	}
	return t.Comment == comment
}

// SetChains adds new chains to a table, and replaces the rules of others. All chains come before the rules that point
// at them.
func SetChains(tx *dp.Transaction, added, changed []Chain) {
	n := len(added) + len(changed)
	for _, list := range [][]Chain{added, changed} {
		for i := range list {
			n += len(list[i].Rules)
		}
	}
	tx.Grow(n)
	for i := range added {
		tx.AddChain(&added[i].Chain)
	}
	for i := range changed {
		tx.FlushChain(changed[i].Name)
	}
	for _, list := range [][]Chain{added, changed} {
		for _, ch := range list {
			for i := range ch.Rules {
				tx.AddRule(ch.Name, &ch.Rules[i])
			}
		}
	}
}

// DeleteChains deletes chains, and sets that only their rules refer to. The chains may point at each other.
func DeleteChains(tx *dp.Transaction, chains, sets []string) {
	tx.Grow(2*len(chains) + len(sets))
	for _, name := range chains {
		tx.FlushChain(name)
	}
	for _, name := range sets {
		tx.DeleteSet(name)
	}
	for _, name := range chains {
		tx.DeleteChain(name)
	}
}

// Apply applies a transaction, split if the socket's buffer is too small: an unprivileged process may not have big
// ones.
func Apply(ctx context.Context, d dp.Interface, tx *dp.Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	err := d.Apply(ctx, tx)
	if !errors.Is(err, syscall.EMSGSIZE) {
		return err
	}
	one, two, ok := tx.Split()
	if !ok {
		return err
	}
	if err := Apply(ctx, d, one); err != nil {
		return err
	}
	return Apply(ctx, d, two)
}

// Retry calls try, which reads a table and corrects it, until no other program changes the table meanwhile, at most
// five times.
func Retry(try func() error) (err error) {
	for range 5 {
		if err = try(); !errors.Is(err, dp.ErrStale) {
			break
		}
	}
	return err
}

// DeleteTable deletes a table, if there is one.
func DeleteTable(ctx context.Context, d dp.Interface, key dp.TableKey) error {
	tx := dp.NewTransaction(key)
	tx.Unconditional = true
	tx.AddTable("") // or deleting fails
	tx.DeleteTable()
	return d.Apply(ctx, tx)
}
