package hns

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend is a [sink.Sink] whose Sync applies services with HNS. It is also a [sink.NodeSetter], a [sink.Resyncer] and
// a [sink.FailureResyncer]. Its methods are called from one goroutine at a time, as those of every sink, except Close
// and CleanUp, which may be called from any.
type Backend struct {
	// Table has the methods of the sink, and keeps what Sync has to apply.
	*frontend.Table

	options  Options
	families map[model.Family]*family
	order    []model.Family
	metrics  *metrics

	stop       context.CancelFunc
	wg         sync.WaitGroup
	unregister func()
}

var (
	_ sink.Sink            = (*Backend)(nil)
	_ sink.NodeSetter      = (*Backend)(nil)
	_ sink.Resyncer        = (*Backend)(nil)
	_ sink.FailureResyncer = (*Backend)(nil)
)

// New finds out the features of HNS, and returns a backend. It changes nothing until the first Sync, and does not wait
// for the network. In the background, until ctx ends or Close is called, it repairs changes by others; it logs to ctx's
// logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	b, err := newBackend(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("hns: %w", err)
	}
	if b.unregister, err = b.metrics.Register(o.Metrics); err != nil {
		return nil, fmt.Errorf("hns: %w", err)
	}
	b.Table, err = frontend.New(frontend.Options{Families: b.order, Apply: b.apply, OnProblem: o.OnProblem,
		Extra: func(s *model.Service) any { return extraOf(s) }})
	if err != nil {
		b.unregister()
		return nil, err
	}
	every := o.checkInterval
	if every == 0 {
		every = defaultCheckInterval
	}
	ctx, b.stop = context.WithCancel(ctx)
	b.wg.Go(func() { b.Repair(ctx, frontend.RepairOptions{Every: max(every, 0), Look: b.look}) })
	return b, nil
}

// newBackend returns a backend without a table.
func newBackend(ctx context.Context, o Options) (*Backend, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Dataplane == nil {
		hns, err := dp.NewHNS()
		if err != nil {
			return nil, err
		}
		o.Dataplane = hns
	}
	if o.hostMAC == nil {
		o.hostMAC = hostMAC
	}
	features, err := o.Dataplane.Features(ctx)
	if err != nil {
		return nil, err
	}
	if !features.V2 {
		return nil, fmt.Errorf("version 2 of the interface of HNS is %w", dp.ErrNotSupported)
	}
	b := &Backend{options: o, families: map[model.Family]*family{}, metrics: newMetrics()}
	switch b.order = o.Families; {
	case b.order != nil:
	case features.IPv6DualStack:
		b.order = model.Families()
	default:
		klog.FromContext(ctx).Info("Serving IPv4 only, this version of Windows does not support IPv6")
		b.order = []model.Family{model.IPv4}
	}
	record := newRecord(o.RecordFile)
	unsupported := newUnsupported(o.OnProblem)
	for _, f := range b.order {
		b.families[f] = newFamily(f, &b.options, features, record, unsupported, b.metrics)
	}
	return b, nil
}

// extra is what else the backend needs to know about a service.
type extra struct {
	// preserveDestination is upstream's annotation: packets to a VIP keep it as their destination.
	preserveDestination bool
	healthCheckNodePort uint16
}

// preserveDestination is the name of upstream's annotation (S55).
const preserveDestination = "preserve-destination"

func extraOf(s *model.Service) extra {
	e := extra{preserveDestination: s.Annotations[preserveDestination] == "true"}
	if s.HealthCheck != nil {
		e.healthCheckNodePort = s.HealthCheck.NodePort
	}
	return e
}

func (b *Backend) apply(ctx context.Context, c *frontend.Changes) error {
	return b.families[c.Family()].apply(ctx, c)
}

func (b *Backend) look(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
	return b.families[c.Family()].look(ctx)
}

// CleanUp deletes the backend's load balancers and endpoints. A later Sync applies everything again.
func (b *Backend) CleanUp(ctx context.Context) error { return b.Table.CleanUp(ctx, b.cleanUp) }

func (b *Backend) cleanUp(ctx context.Context) error {
	var errs []error
	for _, f := range b.order {
		if err := b.families[f].cleanUp(ctx); err != nil {
			errs = append(errs, fmt.Errorf("hns: cleaning up %v: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// Close ends the background work. Everything applied stays. Call no other method after it; a second Close does nothing.
func (b *Backend) Close() error {
	b.stop()
	b.wg.Wait()
	b.unregister()
	return nil
}

// CleanUp deletes what a backend that is not running has left: of o only Network, RecordFile, Families and Dataplane
// matter. It is not an error if nothing is left.
func CleanUp(ctx context.Context, o Options) error {
	if o.Families == nil {
		o.Families = model.Families()
	}
	b, err := newBackend(ctx, o)
	if err != nil {
		return fmt.Errorf("hns: %w", err)
	}
	return b.cleanUp(ctx)
}
