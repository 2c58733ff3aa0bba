package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// IPTables is the kernel's iptables of one family, through the programs of one variant.
type IPTables struct {
	options  Options
	programs *programs
	ns       *namespace
	lockWait int // seconds that a program may wait for iptables-legacy's lock

	// Calls are serialized, so that Close waits for them.
	mu         sync.Mutex
	generation *generation

	counters *counters
}

var _ Interface = (*IPTables)(nil)

// New finds the programs and their features. It needs CAP_NET_ADMIN in the calling thread's network namespace, in which
// all programs will run, whichever goroutine calls. Close it after use.
//
// It returns exec.ErrNotFound if a program is missing, ErrUnusable if it cannot run, fs.ErrPermission, or ErrNoTable
// if the kernel has no table nat for the family, for example without IPv6.
func New(ctx context.Context, o Options) (*IPTables, error) {
	o.Family = cmp.Or(o.Family, model.IPv4)
	if o.Variant == "" {
		var err error
		if o.Variant, err = variantInUse(ctx, o.Family); err != nil {
			return nil, err
		}
	}
	p, err := findPrograms(ctx, o.Family, o.Variant)
	if err != nil {
		return nil, err
	}
	ns, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	t := &IPTables{options: o, programs: p, ns: ns, lockWait: 5}
	if p.variant == Legacy {
		// The program loads kernel modules.
		if _, err := t.restore(ctx, strings.NewReader("*nat\nCOMMIT\n")); err != nil {
			return nil, errors.Join(fmt.Errorf("%v: table nat: %w", o.Family, err), ns.Close())
		}
	}
	if err := ns.do(t.open); err != nil {
		return nil, errors.Join(fmt.Errorf("%v: %w", o.Family, err), ns.Close())
	}
	return t, nil
}

// open opens what belongs to the namespace of the thread.
func (t *IPTables) open() (err error) {
	t.counters = openCounters()
	if t.generation, err = openGeneration(t.options.Family, t.programs.variant); err != nil {
		return errors.Join(err, t.counters.close())
	}
	return nil
}

// Close implements [Interface]. It waits for calls in progress.
func (t *IPTables) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.generation.close(), t.counters.close(), t.ns.Close())
}

// Yield implements [Interface].
func (t *IPTables) Yield() time.Duration { return t.generation.yield() }

// EnsureCounter implements [Interface].
func (t *IPTables) EnsureCounter(name string) error { return t.counters.ensure(name) }

// CountedPackets implements [Interface].
func (t *IPTables) CountedPackets(name string) (uint64, error) { return t.counters.packets(name) }

// RemoveCounter implements [Interface]. It waits up to 200 ms for the kernel, which destroys deleted rules later.
func (t *IPTables) RemoveCounter(name string) error { return t.counters.remove(name) }

// Features implements [Interface].
func (t *IPTables) Features() Features {
	return Features{t.options.Family, t.programs.variant}
}

// Restore implements [Interface]. It changes tables one after the other: those before the one that fails stay changed.
// If ctx ends, the current table is changed completely or not at all.
func (t *IPTables) Restore(ctx context.Context, b *Batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := &RestoreError{Family: t.options.Family, Err: cmp.Or(b.check(), ctx.Err())}
	if failed.Err != nil {
		return failed
	}
	for !b.IsEmpty() {
		stderr, err := t.restore(ctx, b)
		if err == nil {
			return nil
		}
		l := b.lineOf(stderr)
		if l.verb == "-D" && isMissing(stderr) {
			// The rule is already gone. The rest is still applied, with one "-D" less each time.
			klog.FromContext(ctx).V(4).Info("A rule to delete does not exist", "family", t.options.Family,
				"rule", l.text())
			b = b.without(l)
			continue
		}
		failed.Err = err
		failed.at(b, l)
		return failed
	}
	return nil
}

func (t *IPTables) restore(ctx context.Context, input io.WriterTo) (stderr string, err error) {
	args := []string{"--noflush", "--wait", strconv.Itoa(t.lockWait)}
	return run(ctx, t.ns, command{path: t.programs.restore, args: args, write: input})
}

// Read implements [Interface]. It needs memory only for its result. It fails with ErrIncompatible if the table has a
// rule, added with nft, that iptables-nft cannot print; Restore still works.
func (t *IPTables) Read(ctx context.Context, table Table, prefix string) (*State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var state *State
	_, err := run(ctx, t.ns, command{path: t.programs.save, args: []string{"-t", string(table)},
		read: func(r io.Reader) (err error) { state, err = parseSave(r, table, prefix); return err }})
	if err != nil {
		return nil, fmt.Errorf("%v: table %s: %w", t.options.Family, table, err)
	}
	return state, nil
}

// Generation implements [Interface]. For iptables-nft it is nf_tables' generation, which counts the changes of all
// tables; for iptables-legacy it is a hash of the sizes of tables nat and filter.
func (t *IPTables) Generation(ctx context.Context) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	g, err := t.generation.get()
	if err != nil {
		return 0, fmt.Errorf("%v: the generation of the rules: %w", t.options.Family, err)
	}
	return g, nil
}
