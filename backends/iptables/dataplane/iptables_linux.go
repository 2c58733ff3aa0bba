package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/klog/v2"
)

// IPTables is the kernel's iptables of one family, by way of the programs of one variant.
type IPTables struct {
	options  Options
	programs *programs
	ns       *namespace
	lock     string // the file that iptables-restore should lock and does not, before 1.6.2

	mu         sync.Mutex // is held while the rules are changed
	generation generation
}

var _ Interface = (*IPTables)(nil)

// New finds the programs and what they can do. It needs CAP_NET_ADMIN over the network namespace of the calling thread, in
// which all that is done later happens, whichever goroutine asks for it. Close it in the end.
//
// Errors are exec.ErrNotFound if a program is missing, fs.ErrPermission, and ErrNoTable if the kernel has no table nat for
// the family, as without IPv6.
func New(ctx context.Context, o Options) (*IPTables, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	if o.Variant == "" {
		found, err := Survey(ctx, o.Family)
		if err != nil {
			return nil, err
		}
		o.Variant = choose(found)
		klog.FromContext(ctx).V(2).Info("iptables on this node", "family", o.Family, "found", found, "chosen", o.Variant)
	}
	p, err := findPrograms(ctx, o.Family, o.Variant, o.lockSeconds())
	if err != nil {
		return nil, err
	}
	ns, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	t := &IPTables{options: o, programs: p, ns: ns, lock: xtablesLock}
	if _, err := t.Has(ctx, NAT, "POSTROUTING"); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if err := ns.do(func() error { return t.generation.open(o.Family, p.variant) }); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close implements [Interface].
func (t *IPTables) Close() error { return errors.Join(t.generation.close(), t.ns.close()) }

// Features implements [Interface].
func (t *IPTables) Features() Features {
	return Features{
		Family:      t.options.Family,
		Variant:     t.programs.variant,
		Version:     t.programs.versionText(),
		RandomFully: t.programs.command.HasRandomFully(),
	}
}

// Restore implements [Interface]. Tables are put in force one after the other: those before the one that fails are. If ctx
// ends, the table that is under way is in force or is not, but never half of it.
func (t *IPTables) Restore(ctx context.Context, b *Batch) error {
	if err := b.check(); err != nil {
		return &RestoreError{Family: t.options.Family, Err: err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return &RestoreError{Family: t.options.Family, Err: err}
	}
	for _, table := range b.Tables {
		t.generation.watch(table.Table)
	}
	for !b.IsEmpty() {
		err := t.restore(ctx, b)
		p := asProgramError(err)
		if p == nil {
			if err != nil {
				err = &RestoreError{Family: t.options.Family, Err: err}
			}
			return err
		}
		l, number := b.lineOf(p.stderr)
		if l.verb == "-D" && isMissing(p.stderr) {
			// The rule is gone already. The rest is still to be done, and there is one "-D" less each time.
			klog.FromContext(ctx).V(4).Info("rule to delete is not there", "family", t.options.Family, "rule", l.text())
			b = b.without(l)
			continue
		}
		failed := &RestoreError{Family: t.options.Family, Line: number, Origin: l.origin, Stderr: tidy(p.stderr), Err: p.err}
		if number > 0 {
			failed.Table, failed.Text = b.Tables[l.table].Table, l.text()
		}
		return failed
	}
	return nil
}

func (t *IPTables) restore(ctx context.Context, b *Batch) error {
	if !t.programs.restoreLocks {
		unlock, err := lockXtables(ctx, t.lock, t.options.lockSeconds())
		if err != nil {
			return err
		}
		defer unlock()
	}
	return run(ctx, t.ns, command{path: t.programs.restore, args: t.programs.restoreArgs(t.options.lockSeconds()), write: b})
}

// Read implements [Interface]. The memory it takes is that of what it returns. It fails with ErrIncompatible if with the
// help of nft somebody has put a rule into the table that iptables-nft cannot print; Restore goes on working then.
func (t *IPTables) Read(ctx context.Context, table Table, prefix string) (*State, error) {
	t.generation.watch(table)
	parser := newSaveParser(table, prefix)
	err := run(ctx, t.ns, command{path: t.programs.save, args: []string{"-t", string(table)}, read: parser.line})
	var state *State
	if err == nil {
		state, err = parser.end()
	}
	if err != nil {
		return nil, fmt.Errorf("%v: table %s: %w", t.options.Family, table, err)
	}
	return state, nil
}

// Has implements [Interface]. iptables-nft asks the kernel for the one chain; iptables-legacy gets the whole table.
func (t *IPTables) Has(ctx context.Context, table Table, chain string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	has := false
	err := t.ns.do(func() (err error) {
		has, err = t.programs.command.ChainExists(string(table), chain)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%v: table %s: %w", t.options.Family, table, explain(err, err.Error()))
	}
	return has, nil
}

// Generation implements [Interface]. For iptables-nft it is nf_tables' own, which counts the changes of all tables; for
// iptables-legacy it is made of the number and size of the rules in tables nat and filter, and others that Restore or Read
// have had.
func (t *IPTables) Generation(ctx context.Context) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	g, err := t.generation.get()
	if err != nil {
		return 0, fmt.Errorf("%v: the generation of the rules: %w", t.options.Family, err)
	}
	return g, nil
}
