package hns

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/lifecycle"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Backend is a [frontend.Backend], which documents its methods. Sync applies services with HNS.
//
// DescribeService returns, for each family, the HNS endpoints that a service uses and its load balancers, as HNS was
// last known to have them.
//
// CleanUp deletes the backend's load balancers and endpoints.
type Backend struct {
	*running

	families map[model.Family]*family
}

type running = lifecycle.Running

// New finds out the features of HNS, and returns a backend. It changes nothing until the first Sync, and does not wait
// for the network. In the background, until ctx ends or Close is called, it repairs changes by others; it logs to ctx's
// logger. ctx does not bound calls of Sync.
func New(ctx context.Context, o Options) (*Backend, error) {
	s := o.spec()
	running, err := s.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &Backend{running, s.Families}, nil
}

// CleanUp deletes what a backend that is not running has left: of o only Network, RecordFile, Families and Dataplane
// matter. It is not an error if nothing is left.
func CleanUp(ctx context.Context, o Options) error {
	if o.Families == nil {
		o.Families = model.Families()
	}
	return o.spec().CleanUp(ctx)
}

// spec returns how the backend does what all backends do.
func (o *Options) spec() *lifecycle.Spec[*family] {
	err := o.complete()
	return &lifecycle.Spec[*family]{Name: "hns", Common: o.Common, Invalid: err, Open: o.open,
		Apply: (*family).apply, Extra: extraOf, Check: (*family).check, Every: o.checkInterval,
		Describe: (*family).describeService, Remove: (*family).cleanUp}
}

func (o *Options) open(ctx context.Context, s *lifecycle.Spec[*family]) error {
	if o.Dataplane == nil {
		hns, err := dp.NewHNS()
		if err != nil {
			return err
		}
		o.Dataplane = hns
	}
	s.UseHostOf(o.Dataplane)
	features, err := o.Dataplane.Features(ctx)
	if err != nil {
		return err
	}
	if !features.V2 {
		return fmt.Errorf("HNS API version 2 is %w", dp.ErrNotSupported)
	}
	if o.Families == nil && !features.IPv6DualStack {
		klog.FromContext(ctx).Info("Serving IPv4 only: this version of Windows does not support IPv6")
		s.Common.Families = []model.Family{model.IPv4}
	}
	record, unsupported, metrics := newRecord(o.RecordFile), newUnsupported(o.OnProblem), newMetrics(&s.Metrics)
	return s.Serve(ctx, func(f model.Family) (*family, error) {
		return newFamily(f, o, features, record, unsupported, metrics), nil
	})
}

// extra is what else the backend needs to know about a service.
type extra struct {
	// preserveDestination is upstream's annotation: packets to a VIP keep it as their destination.
	preserveDestination bool
	healthCheckNodePort uint16
}

// preserveDestination is the name of upstream's annotation (S55).
const preserveDestination = "preserve-destination"

// extraOf returns the extra of a service.
func extraOf(s *model.Service) any {
	e := extra{preserveDestination: s.Annotations[preserveDestination] == "true"}
	if s.HealthCheck != nil {
		e.healthCheckNodePort = s.HealthCheck.NodePort
	}
	return e
}
