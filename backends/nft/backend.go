package nft

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a [frontend.Backend], which documents its methods. Sync applies services with nftables.
//
// DescribeService returns a service's elements in the tables and the chains that they point at, which it may share with
// others, as commands for nft. It renders them as the backend applies them, and does not read the kernel.
//
// CleanUp deletes the backend's tables. Existing connections keep their endpoints; new ones are no longer served.
type Backend struct {
	*running
}

type running = lifecycle.Running

// New checks that the kernel supports what the backend needs, and returns the backend. It changes nothing until the
// first Sync. When other programs change its tables, it repairs them at once, in the background, until ctx ends or
// Close is called; it logs to ctx's logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	running, err := o.spec().Start(ctx)
	if err != nil {
		return nil, err
	}
	return &Backend{running}, nil
}

// CleanUp deletes the tables of a backend that is not running, whatever is in them: of o only TableName, Families and
// Dataplane matter. Missing tables are not an error.
func CleanUp(ctx context.Context, o Options) error { return o.spec().CleanUp(ctx) }

// spec returns how the backend does what all backends do.
func (o *Options) spec() *lifecycle.Spec[*family] {
	err := o.complete()
	return &lifecycle.Spec[*family]{Name: "nft", Common: o.Common, MasqueradeMark: &o.MasqueradeMark, Invalid: err,
		Open: o.open, Apply: (*family).apply, Sticky: StickyLimits(), Check: (*family).check,
		Describe: (*family).describeService, Remove: (*family).cleanUp}
}

// open opens nftables, and checks that the kernel supports what the backend needs.
func (o *Options) open(ctx context.Context, s *lifecycle.Spec[*family]) error {
	err := lifecycle.Default(s, &o.Dataplane, func() (dp.Interface, error) { return dp.NewNetlink() })
	if err != nil {
		return err
	}
	s.UseHostOf(o.Dataplane)
	again := make(chan struct{}, 1)
	s.Drift, s.Yield = append(s.Drift, o.Dataplane.Drift(), again), append(s.Yield, o.Dataplane.Yield)
	return s.Serve(ctx, func(f model.Family) (*family, error) {
		if err := probe(ctx, o.Dataplane, f, o); err != nil {
			return nil, err
		}
		return &family{dataplane: o.Dataplane, options: o, metrics: newMetrics(&s.Metrics, f),
			key: dp.TableKey{Family: f, Name: o.TableName}, again: again}, nil
	})
}
