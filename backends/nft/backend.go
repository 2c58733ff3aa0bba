package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync applies services with nftables. It is also a [sink.NodeSetter] and a
// [sink.Resyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close and
// CleanUp, which may be called from any.
type Backend struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	families []*family
	stop     context.CancelFunc
	done     chan struct{}
	release  func() error // releases the backend's resources, once
}

var (
	_ sink.Sink       = (*Backend)(nil)
	_ sink.NodeSetter = (*Backend)(nil)
	_ sink.Resyncer   = (*Backend)(nil)
	_ sink.Describer  = (*Backend)(nil)
	_ sink.Repairer   = (*Backend)(nil)
)

// New checks that the kernel supports what the backend needs, and returns the backend. It changes nothing until the
// first Sync. When other programs change its tables, it repairs them at once, in the background, until ctx ends or
// Close is called; it logs to ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (_ *Backend, err error) {
	closeDataplane := func() error { return nil } // one that it is given is not the backend's to close
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("nft: %w", err), closeDataplane())
		}
	}()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o = o.withDefaults(); o.Dataplane == nil {
		n, err := dp.NewNetlink()
		if err != nil {
			return nil, err
		}
		o.Dataplane, closeDataplane = n, n.Close
	}
	families, err := frontend.ChooseFamilies(ctx, o.Families, func(f model.Family) (absent bool, err error) {
		return true, probe(ctx, o.Dataplane, f, &o)
	})
	if err != nil {
		return nil, err
	}
	b := &Backend{done: make(chan struct{})}
	metrics := newMetrics(families)
	for _, f := range families {
		b.families = append(b.families, &family{dataplane: o.Dataplane, options: &o, metrics: metrics,
			key: dp.TableKey{Family: f, Name: o.TableName}})
	}
	b.Table, err = frontend.New(frontend.Options{Families: families, OnProblem: o.OnProblem,
		Apply: func(ctx context.Context, c *frontend.Changes) error { return b.family(c.Family()).apply(ctx, c) }})
	if err != nil {
		return nil, err
	}
	unregister, err := metrics.Register(o.Metrics)
	if err != nil {
		return nil, err
	}
	b.release = sync.OnceValue(func() error {
		unregister()
		return closeDataplane()
	})
	ctx, b.stop = context.WithCancel(ctx)
	go func() {
		defer close(b.done)
		b.Repair(ctx, frontend.RepairOptions{Wake: o.Dataplane.Drift(),
			Look: func(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
				return b.family(c.Family()).repair(ctx, c)
			}})
	}()
	return b, nil
}

func (b *Backend) family(of model.Family) *family {
	return b.families[slices.IndexFunc(b.families, func(f *family) bool { return f.key.Family == of })]
}

// CleanUp deletes the backend's tables. Existing connections keep their endpoints; new ones are no longer served. A
// later Sync applies everything again.
func (b *Backend) CleanUp(ctx context.Context) error {
	return b.Table.CleanUp(ctx, func(ctx context.Context) error {
		var errs []error
		for _, f := range b.families {
			if err := f.cleanUp(ctx); err != nil {
				errs = append(errs, fmt.Errorf("nft: cleaning up: %w", err))
			}
		}
		return errors.Join(errs...)
	})
}

// Close ends the repairs and releases the backend's resources. The tables stay. Call no other method after it; a second
// Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	<-b.done
	return b.release()
}

// CleanUp deletes the tables of a backend that is not running, whatever is in them: of o only TableName, Families and
// Dataplane matter. Missing tables are not an error.
func CleanUp(ctx context.Context, o Options) error {
	o.Metrics = nil
	b, err := New(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(b.CleanUp(ctx), b.Close())
}
