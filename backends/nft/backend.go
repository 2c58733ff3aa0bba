package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync applies services with nftables. It is also a [sink.NodeSetter] and a
// [sink.Resyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close, CleanUp and
// Problems, which may be called from any.
type Backend struct {
	*frontend.Table

	options   Options
	dataplane dp.Interface
	owned     bool // the dataplane is the backend's own to close
	families  []*family

	stop  context.CancelFunc
	done  chan struct{}
	close func() error
}

var (
	_ sink.Sink       = (*Backend)(nil)
	_ sink.NodeSetter = (*Backend)(nil)
	_ sink.Resyncer   = (*Backend)(nil)
)

// New returns a backend, after it has found out that the kernel can do what it needs. It changes nothing until the first
// Sync. When others change its tables it repairs them at once, in the background, until ctx ends or Close is called;
// it logs with ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	b := &Backend{options: o.withDefaults(), dataplane: o.Dataplane, done: make(chan struct{})}
	if b.dataplane == nil {
		n, err := dp.NewNetlink()
		if err != nil {
			return nil, fmt.Errorf("nft: %w", err)
		}
		b.dataplane, b.owned = n, true
	}
	if err := b.chooseFamilies(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("nft: %w", err), b.closeDataplane())
	}
	var families []model.Family
	for _, f := range b.families {
		families = append(families, f.key.Family)
	}
	metrics := newMetrics(families)
	for _, f := range b.families {
		f.metrics = metrics
	}
	unregister, err := metrics.Register(o.Metrics)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: %w", err), b.closeDataplane())
	}
	b.close = sync.OnceValue(func() error {
		unregister()
		return b.closeDataplane()
	})
	b.Table, err = frontend.New(frontend.Options{Families: families, OnProblem: o.OnProblem,
		Apply: func(ctx context.Context, c *frontend.Changes) error { return b.family(c.Family()).apply(ctx, c) }})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: %w", err), b.close())
	}
	ctx, b.stop = context.WithCancel(ctx)
	go func() {
		defer close(b.done)
		b.Repair(ctx, frontend.RepairOptions{Wake: b.dataplane.Drift(),
			Look: func(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
				return b.family(c.Family()).repair(ctx, c)
			}})
	}()
	return b, nil
}

// chooseFamilies makes the families that are asked for or, if none is, those that the kernel can do.
func (b *Backend) chooseFamilies(ctx context.Context) error {
	families := b.options.Families
	if families == nil {
		all := model.Families()
		families = all[:]
	}
	for _, f := range families {
		if err := probe(ctx, b.dataplane, f, &b.options); err != nil {
			if b.options.Families == nil && f == model.IPv6 && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Serving IPv4 only, the kernel cannot do IPv6", "reason", err)
				continue
			}
			return err
		}
		b.families = append(b.families, &family{dataplane: b.dataplane, options: &b.options,
			key: dp.TableKey{Family: f, Name: b.options.TableName}})
	}
	return nil
}

func (b *Backend) family(of model.Family) *family {
	return b.families[slices.IndexFunc(b.families, func(f *family) bool { return f.key.Family == of })]
}

// CleanUp deletes the backend's tables. Flows that are under way keep their endpoints; for new ones services end. A later
// Sync applies everything again.
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

// Close ends the repairs and releases what the backend holds. The tables stay. Call no other method after it; a
// second Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	<-b.done
	return b.close()
}

func (b *Backend) closeDataplane() error {
	if !b.owned {
		return nil
	}
	return b.dataplane.Close()
}

// CleanUp deletes the tables of a backend that is not running, whatever is in them: of o only TableName, Families and
// Dataplane matter. That there are none is no error.
func CleanUp(ctx context.Context, o Options) error {
	o.Metrics = nil
	b, err := New(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(b.CleanUp(ctx), b.Close())
}
