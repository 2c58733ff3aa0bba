package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a [sink.Sink] whose Sync applies services with iptables. It also has the optional interfaces of a
// [frontend.Table]. As with every sink, methods are called from one goroutine at a time, except Close and CleanUp,
// which may be called from any.
//
// The error of Sync is a [*sink.FamilyError] for each family that is not served as described, with a [*sink.PortError]
// for each service port whose rules iptables or the kernel refuses, for example because a match is missing. Such a
// service port is left out. It is tried again when it changes, and at the next retry or resync.
type Backend struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	options  Options
	kernel   *kernel
	metrics  *metrics
	families []*family // guarded by the table
	stop     context.CancelFunc
	wg       sync.WaitGroup
	close    func() error
}

// New finds the programs that the backend needs, and returns the backend. It changes nothing until the first Sync. When
// other programs change its chains, it repairs them, in the background, until ctx ends or Close is called; it logs to
// ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	b := &Backend{options: o.withDefaults(), kernel: newKernel(o.Sysctls)}
	var opened []dp.Interface
	if len(o.Dataplanes) == 0 {
		var err error
		if opened, err = open(ctx, &o); err != nil {
			return nil, errors.Join(fmt.Errorf("iptables: %w", err), closeAll(opened))
		}
	}
	var families []model.Family
	for _, d := range slices.Concat(o.Dataplanes, opened) {
		f := newFamily(b, d)
		b.families = append(b.families, f)
		families = append(families, f.features.Family)
	}
	b.metrics = newMetrics(families)
	unregister, err := b.metrics.Register(o.Metrics)
	if err == nil {
		b.Table, err = frontend.New(frontend.Options{Families: families, OnProblem: o.OnProblem,
			Apply: func(ctx context.Context, c *frontend.Changes) error { return b.family(c.Family()).apply(ctx, c) }})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("iptables: %w", err), closeAll(opened))
	}
	b.close = sync.OnceValue(func() error {
		unregister()
		return closeAll(opened)
	})
	ctx, b.stop = context.WithCancel(ctx)
	if every := b.options.driftInterval; every > 0 {
		b.wg.Go(func() { b.Repair(ctx, frontend.RepairOptions{Every: every, Look: b.look}) })
	}
	return b, nil
}

func (b *Backend) family(f model.Family) *family {
	return b.families[slices.IndexFunc(b.families, func(have *family) bool { return have.features.Family == f })]
}

// open opens the families in the options or, if there are none, those that the machine supports.
func open(ctx context.Context, o *Options) (opened []dp.Interface, err error) {
	_, err = frontend.ChooseFamilies(ctx, o.Families, func(f model.Family) (absent bool, err error) {
		d, err := dp.New(ctx, dp.Options{Family: f, Variant: o.variant})
		if err == nil {
			opened = append(opened, d)
		}
		return dp.IsAbsent(err), err
	})
	return opened, err
}

func closeAll(dataplanes []dp.Interface) error {
	var errs []error
	for _, d := range dataplanes {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// CleanUp removes the backend's chains and the jumps to them. Existing connections keep their endpoints; new ones are
// no longer served. A later Sync applies everything again.
func (b *Backend) CleanUp(ctx context.Context) error {
	return b.Table.CleanUp(ctx, func(ctx context.Context) error {
		var errs []error
		for _, f := range b.families {
			f.state = unknown
			if err := cleanUp(ctx, f.dataplane); err != nil {
				errs = append(errs, fmt.Errorf("iptables: cleaning up: %w", err))
				continue
			}
			for _, table := range []dp.Table{dp.NAT, dp.Filter} {
				b.metrics.applied(f.features.Family, table, 0)
			}
		}
		return errors.Join(errs...)
	})
}

// Close ends the repairs and releases the backend's resources. The rules stay. Call no other method after it; a second
// Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	b.wg.Wait()
	return b.close()
}

// CleanUp removes the chains of a backend that is not running: of o only Families and Dataplanes matter. Without
// Dataplanes it does so in both variants, as far as their programs are installed. Missing chains are not an error. A
// table that cannot be read is; the error is returned after the rest has been cleaned up.
func CleanUp(ctx context.Context, o Options) error {
	if err := o.validate(); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	var errs []error
	for _, d := range o.Dataplanes {
		errs = append(errs, cleanUp(ctx, d))
	}
	if len(o.Dataplanes) == 0 {
		opened, err := dp.OpenInUse(ctx, o.Families, o.variant)
		errs = append(errs, err)
		for _, d := range opened {
			errs = append(errs, cleanUp(ctx, d), d.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("iptables: cleaning up: %w", err)
	}
	return nil
}
